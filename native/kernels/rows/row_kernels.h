// Operations on rows of floats: norms, rotations, activations, sums.  There is one table per instruction set; see
// attention_kernels.h for why nothing else may be visible.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace quire {

enum class Activation { silu, gelu, gelu_tanh, relu };

struct RowKernels {
    // out = x / sqrt(mean(x^2) + eps) * weight; the weight may be null.  Summed in a fixed order.
    void (*rms_norm)(const float *x, const float *weight, float eps, float *out, int64_t n);
    // out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias; weight and bias may be null.
    void (*layer_norm)(const float *x, const float *weight, const float *bias, float eps, float *out, int64_t n);
    // x[i] = x[i] * cosines[i] + partner * sines[i] for i < n.  The partner is x[i +- n / 2] (half) or the other number
    // of a pair of neighbours (interleaved).  The sines include the signs.
    void (*rotate_half)(float *x, const float *cosines, const float *sines, int64_t n);
    void (*rotate_interleaved)(float *x, const float *cosines, const float *sines, int64_t n);
    void (*activate)(Activation activation, const float *x, float *out, int64_t n);
    void (*gate)(Activation activation, const float *gate, const float *up, float *out,
                 int64_t n); // activated gate * up
    void (*add)(const float *a, const float *b, float *out, int64_t n);
    void (*multiply)(const float *a, const float *b, float *out, int64_t n);
    void (*scale)(const float *x, float factor, float *out, int64_t n);
    void (*soft_cap)(const float *x, float cap, float *out, int64_t n); // cap * tanh(x / cap)
    void (*add_scaled)(const float *x, float factor, float *sum, int64_t n); // sum += factor * x
    float (*largest)(const float *x, int64_t n); // largest magnitude; NaN if a number is not finite
};

namespace portable {
extern const RowKernels row_kernels;
}
namespace neon {
extern const RowKernels row_kernels;
}
namespace avx2 {
extern const RowKernels row_kernels;
}
namespace avx512 {
extern const RowKernels row_kernels;
}

} // namespace quire
