// The primitives by name.  All throw ShapeError where shapes do not fit.  Axes count from the last dimension, 0; the
// leading one, of rows, cannot be named.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/tracer.h"

namespace quire {

// Each number by itself (primitives/elements.cpp).
enum class Function { sigmoid, softplus, tanh, exp, relu_squared, quick_gelu, negate };
TraceTensor apply(const TraceTensor &x, Function function);
TraceTensor clamp(const TraceTensor &x, float low, float high);
struct Xielu {
    float alpha_p, alpha_n, beta, eps;
};
TraceTensor xielu(const TraceTensor &x, Xielu parameters); // expanded integral of ELU (Huang and Schlag 2025)
// min(gate, limit) * sigmoid(alpha * gate) * (clamp(up, -limit, limit) + 1), as gpt-oss has it.
TraceTensor clamped_swiglu(const TraceTensor &gate, const TraceTensor &up, float alpha, float limit);

// Sums and products in which dimensions of 1 of the second operand are repeated (primitives/broadcast.cpp).
TraceTensor add_broadcast(const TraceTensor &a, const TraceTensor &b);
TraceTensor multiply_broadcast(const TraceTensor &a, const TraceTensor &b);
// With a weight of the last dimensions of x.
TraceTensor add_weight(const TraceTensor &x, WeightRef weight);
TraceTensor multiply_weight(const TraceTensor &x, WeightRef weight);

// primitives/norms.cpp
TraceTensor layer_norm(const TraceTensor &x, WeightRef weight, WeightRef bias, float eps); // either may be null
TraceTensor l2_norm(const TraceTensor &x, float eps);                        // x / max(|x|, eps)
TraceTensor group_norm(const TraceTensor &x, int n_groups, WeightRef weight, float eps); // RMS of each part

// primitives/layout.cpp
TraceTensor slice(const TraceTensor &x, int axis, int64_t begin, int64_t end);
TraceTensor concat(const TraceTensor &a, const TraceTensor &b, int axis);
TraceTensor repeat_heads(const TraceTensor &x, int n); // [rows, h, d] to [rows, h * n, d], each n times in turn
TraceTensor reshape(const TraceTensor &x, std::vector<int64_t> rest);

// x [rows, h, n_in] times weight [h, n_out, n_in], each head with its own matrix (primitives/head_product.cpp).
TraceTensor head_linear(const TraceTensor &x, WeightRef weight);

// Rows scaled by 1 + beta * log(1 + floor((position + offset) / n_ctx)) (primitives/position_scale.cpp): the temperature
// that Llama 4 and Ministral 3 give long contexts.
struct PositionScale {
    float beta;
    int64_t n_ctx, offset;
};
TraceTensor scale_by_position(const TraceTensor &x, const TraceTensor &positions, PositionScale parameters);

// Operations that carry a state of each sequence from row to row (graph/state_primitive.h).
struct StatePlace { // the state of the cache that belongs to the operation
    int layer, index;
};
// Depth-wise causal convolution (primitives/conv_state.cpp): x [tokens, channels], weight [channels, kernel], the last tap
// being that of the row itself; bias [channels] may be null.  State: [kernel - 1, channels], the oldest input first.
TraceTensor conv_state(const TraceTensor &x, WeightRef weight, WeightRef bias, StatePlace place, bool is_silu);

} // namespace quire
