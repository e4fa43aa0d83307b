#include "graph/stock/stream_operators.h"

#include <cmath>

namespace quire {

ggml_tensor *stock_before_softplus(ggml_context *ctx, ggml_tensor *dt) {
    if (dt->op == GGML_OP_UNARY && ggml_get_unary_op(dt) == GGML_UNARY_OP_SOFTPLUS) return dt->src[0];
    dt = stock_dense(ctx, dt);
    // log(exp(dt) - 1) without overflow or cancellation.
    ggml_tensor *rest = ggml_neg(ctx, ggml_expm1(ctx, ggml_neg(ctx, dt)));
    return ggml_add(ctx, dt, ggml_log(ctx, rest));
}

ggml_tensor *stock_before_ones(const StateStreams &streams, ggml_tensor *of_heads) {
    ggml_tensor *all = ggml_repeat_4d(streams.context, of_heads, of_heads->ne[0], streams.n_rows(), 1, 1);
    return ggml_scale_bias(streams.context, all, 0.0F, static_cast<float>(std::log(std::exp(1.0) - 1.0)));
}

StreamsMade stock_scan(const StateStreams &streams, const StreamScan &scan) {
    ggml_context *ctx = streams.context;
    const int64_t n_head = scan.n_head, head_dim = scan.head_dim, n_rows = streams.n_rows();
    ggml_tensor *before = ggml_reshape_2d(ctx, stock_dense(ctx, scan.before_dt), n_head, n_rows);
    if (streams.mask != nullptr) { // dt of padding is 0
        constexpr float far = 1e9F;
        ggml_tensor *mask = ggml_reshape_2d(ctx, streams.mask, 1, n_rows);
        before = ggml_add(ctx, before, ggml_scale_bias(ctx, mask, far, -far));
    }
    ggml_tensor *states = ggml_reshape_4d(ctx, streams.pool, scan.n_state, head_dim, n_head, streams.pool->ne[1]);
    ggml_tensor *made = ggml_ssm_scan(ctx, states, streams.by_stream(scan.x, head_dim, n_head),
                                      ggml_reshape_3d(ctx, before, n_head, streams.stream_rows, streams.n_streams),
                                      ggml_reshape_2d(ctx, scan.a, ggml_nelements(scan.a) / n_head, n_head),
                                      streams.by_stream(scan.b, scan.n_state, scan.n_group),
                                      streams.by_stream(scan.c, scan.n_state, scan.n_group), streams.slots, 1);
    StreamsMade split = stock_split(streams, made, head_dim * n_head);
    if (scan.d == nullptr) return split;
    ggml_tensor *skip =
        ggml_mul(ctx, ggml_reshape_3d(ctx, scan.x, head_dim, n_head, n_rows), ggml_reshape_2d(ctx, scan.d, 1, n_head));
    split.rows = ggml_add(ctx, split.rows, ggml_reshape_2d(ctx, skip, head_dim * n_head, n_rows));
    return split;
}

StreamsMade stock_delta(const StateStreams &streams, const StreamDelta &delta) {
    ggml_context *ctx = streams.context;
    const int64_t n = delta.n, n_head = delta.n_head, n_key_head = delta.n_key_head;
    // In ggml's operator, head h reads key head h % n_key_head, as in the tiled layout.
    const bool repeats = !delta.is_tiled && n_key_head != n_head;
    auto of_heads = [&](ggml_tensor *x) {
        if (!repeats) return streams.by_stream(x, n, n_key_head);
        ggml_tensor *each = ggml_reshape_4d(ctx, x, n, 1, n_key_head, streams.n_rows());
        each = ggml_repeat_4d(ctx, each, n, n_head / n_key_head, n_key_head, streams.n_rows());
        return streams.by_stream(each, n, n_head);
    };
    // ggml's operator scales the results of queries.
    ggml_tensor *q = ggml_scale(ctx, of_heads(delta.q), std::sqrt(static_cast<float>(n)));
    ggml_tensor *states = ggml_reshape_4d(ctx, streams.states(), n, n, n_head, streams.n_streams);
    ggml_tensor *made =
        ggml_gated_delta_net(ctx, q, of_heads(delta.k), streams.by_stream(delta.v, n, n_head),
                             streams.by_stream(streams.masked(delta.g), delta.is_by_key ? n : 1, n_head),
                             streams.by_stream(streams.masked(delta.beta), 1, n_head), states, 1);
    return stock_split(streams, made, n * n_head);
}

namespace {

constexpr int64_t wkv_size = 64;

// {64, n_head, rows}
ggml_tensor *of_heads(const StateStreams &streams, const StreamWkv &wkv, ggml_tensor *x) {
    return ggml_reshape_3d(streams.context, x, wkv_size, wkv.n_head, streams.n_rows());
}

// The decay of the state.
ggml_tensor *decay(const StateStreams &streams, const StreamWkv &wkv) {
    return ggml_exp(streams.context, of_heads(streams, wkv, streams.masked(wkv.w)));
}

} // namespace

StreamsMade stock_wkv6(const StateStreams &streams, const StreamWkv &wkv, ggml_tensor *first) {
    auto heads = [&](ggml_tensor *x) { return of_heads(streams, wkv, x); };
    ggml_tensor *made = ggml_rwkv_wkv6(streams.context, heads(streams.masked(wkv.k)), heads(wkv.v), heads(wkv.r), first,
                                       decay(streams, wkv), streams.states());
    return stock_split(streams, made, wkv_size * wkv.n_head);
}

StreamsMade stock_wkv7(const StateStreams &streams, const StreamWkv &wkv, ggml_tensor *a, ggml_tensor *b) {
    auto heads = [&](ggml_tensor *x) { return of_heads(streams, wkv, x); };
    ggml_tensor *made = ggml_rwkv_wkv7(streams.context, heads(wkv.r), decay(streams, wkv), heads(streams.masked(wkv.k)),
                                       heads(wkv.v), heads(a), heads(streams.masked(b)), streams.states());
    return stock_split(streams, made, wkv_size * wkv.n_head);
}

} // namespace quire
