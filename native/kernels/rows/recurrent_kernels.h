// Operations that carry a state through the rows of one sequence: convolution, selective scan, and states that outer
// products are added to.  There is one table per instruction set; see attention_kernels.h for why nothing else may be
// visible.
//
// All rows are processed for a few columns of the state at a time, which stay in the first-level cache.  Rows are not
// grouped into chunks: that would save no multiplications, and a row's bits would depend on the rows around it.
#pragma once

#include <cstdint>

#include "kernels/isa.h"

namespace quire {

// out[r, c] = bias[c] + sum over j of taps[j, c] * x[r + j - (width - 1), c]; rows before the first come from `past`.
struct ConvRows {
    int64_t n_rows, n; // n is the number of channels
    int64_t stride; // floats between rows, for all arrays
    int width; // at most most_conv_width
    bool is_silu;
    const float *x, *past, *taps, *bias; // past [width - 1]; bias may be null
    float *out;
};
inline constexpr int most_conv_width = 32;

// The selective scan of Mamba 1 (Gu and Dao 2023).  Channels are in blocks of m = scan_channels, the last of which may
// have fewer; `a` and `state` are [blocks][n_state][m].
struct ScanRows {
    int64_t n_rows, n; // n is the number of channels
    int64_t stride; // floats between rows of x, dt and out
    int64_t n_state; // numbers per channel, and per row of b and c
    const float *x, *dt, *b, *c;
    const float *a, *skip; // skip [n] may be null
    float *state, *out;
};
inline constexpr int64_t scan_channels = 16;

// How a head updates its state S [n_key, n_value] for each row, with decay d, key k, value v and query q.
enum class OuterRule {
    product, // S = d S + k (beta v)^T; out = S^T q + skip v: Mamba 2 (Dao and Gu 2024)
    delta, // S = d S; S += k (beta (v - S^T k))^T; out = S^T q: gated delta rule (Yang et al. 2024)
    bonus, // out = S^T q + (q . (first k)) v; S = d S + k v^T: RWKV-6 (Peng et al. 2024)
    general, // S = d S + k v^T + b (S^T a)^T; out = S^T q: RWKV-7 (Peng et al. 2025)
};
struct OuterRows {
    OuterRule rule;
    int64_t n_rows, n_key, n_value; // n_key at most most_keys
    struct Rows {
        const float *data;
        int64_t stride;
    };
    Rows key, query, value;
    Rows decay; // logarithms, at most 0: one number per row, or n_key
    bool is_decay_by_key;
    float decay_factor = 1; // multiplies the logarithm if there is one per row
    Rows beta{nullptr, 0}; // one number per row
    float skip = 0;
    const float *first = nullptr; // [n_key]
    Rows a{nullptr, 0}, b{nullptr, 0};
    float *state, *out;
    int64_t out_stride;
};
inline constexpr int64_t most_keys = 256;
// The state is stored in blocks of m = outer_columns columns, the last of which may have fewer: [blocks][n_key][m].
// With 128 keys a block takes half of the first-level cache; columns of a whole matrix would compete for few of its
// sets.
inline constexpr int64_t outer_columns = 32;

struct RecurrentKernels {
    void (*conv)(const ConvRows &rows);
    void (*scan)(const ScanRows &rows);
    void (*outer)(const OuterRows &rows);
};

namespace portable {
extern const RecurrentKernels recurrent_kernels;
}
namespace neon {
extern const RecurrentKernels recurrent_kernels;
}
namespace avx2 {
extern const RecurrentKernels recurrent_kernels;
}
namespace avx512 {
extern const RecurrentKernels recurrent_kernels;
}

} // namespace quire
