// ggml's operators for recurrent states, applied to streams; outer_state.cpp and selective_scan.cpp run them on devices.
#pragma once

#include "graph/stock/state_streams.h"

namespace quire {

// h = exp(dt * a) h + dt x b, y = h . c + d x; groups of heads share b and c.
struct StreamScan {
    int64_t head_dim, n_head, n_group, n_state;
    ggml_tensor *x; // {head_dim, n_head, rows}
    ggml_tensor *before_dt; // {n_head, rows}: its softplus is dt
    ggml_tensor *b, *c; // {n_state, n_group, rows}
    ggml_tensor *a; // {n_head}, or {n_state, n_head}
    ggml_tensor *d; // {n_head}; null: none
};
StreamsMade stock_scan(const StateStreams &streams, const StreamScan &scan);
// The inverse of softplus, applied to `dt`: ggml's operator applies softplus itself.
ggml_tensor *stock_before_softplus(ggml_context *context, ggml_tensor *dt);
// {n_head, rows}: values whose softplus is 1.
ggml_tensor *stock_before_ones(const StateStreams &streams, ggml_tensor *of_heads);

// q, k {n, n_key_head, rows}, v {n, n_head, rows}, g {n_head, rows} or {n, n_head, rows}, beta {n_head, rows}.
struct StreamDelta {
    int64_t n, n_head, n_key_head;
    bool is_tiled, is_by_key;
    ggml_tensor *q, *k, *v, *g, *beta;
};
StreamsMade stock_delta(const StateStreams &streams, const StreamDelta &delta);
constexpr bool has_delta_operator(int64_t n_key, int64_t n_value) { // CUDA aborts the process for others
    return n_key == n_value && (n_key == 16 || n_key == 32 || n_key == 64 || n_key == 128);
}

// All {64, n_head, rows}; `first` {64, n_head}.
struct StreamWkv {
    int64_t n_head;
    ggml_tensor *r, *w, *k, *v;
};
StreamsMade stock_wkv6(const StateStreams &streams, const StreamWkv &wkv, ggml_tensor *first);
StreamsMade stock_wkv7(const StateStreams &streams, const StreamWkv &wkv, ggml_tensor *a, ggml_tensor *b);
// Vulkan supports no other sizes, and does not report that.
constexpr bool has_wkv_operator(int64_t n_key, int64_t n_value) { return n_key == 64 && n_value == 64; }

} // namespace quire
