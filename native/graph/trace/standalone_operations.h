// The standalone operations by name.  All throw ShapeError if shapes do not match.  Axes count from the last dimension,
// 0; the leading one, of rows, cannot be named.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/trace/tracer.h"

namespace quire {

// Each number by itself (operations/standalone/elements.cpp).
enum class Function { sigmoid, softplus, tanh, exp, relu_squared, quick_gelu, negate, sqrt };
TraceTensor apply(const TraceTensor &x, Function function);
TraceTensor clamp(const TraceTensor &x, float low, float high);
struct Xielu {
    float alpha_p, alpha_n, beta, eps;
};
TraceTensor xielu(const TraceTensor &x, Xielu parameters); // expanded integral of ELU (Huang and Schlag 2025)
// min(gate, limit) * sigmoid(alpha * gate) * (clamp(up, -limit, limit) + 1), as gpt-oss has it.
TraceTensor clamped_swiglu(const TraceTensor &gate, const TraceTensor &up, float alpha, float limit);

// Sums and products in which dimensions of 1 of the second operand are repeated (operations/standalone/broadcast.cpp).
TraceTensor add_broadcast(const TraceTensor &a, const TraceTensor &b);
TraceTensor multiply_broadcast(const TraceTensor &a, const TraceTensor &b);
// With a weight of the last dimensions of x.
TraceTensor add_weight(const TraceTensor &x, WeightRef weight);
TraceTensor multiply_weight(const TraceTensor &x, WeightRef weight);

// operations/standalone/norms.cpp
TraceTensor layer_norm(const TraceTensor &x, WeightRef weight, WeightRef bias, float eps); // either may be null
TraceTensor l2_norm(const TraceTensor &x, float eps); // x / max(|x|, eps)
TraceTensor softmax(const TraceTensor &x); // over the last dimension
TraceTensor group_norm(const TraceTensor &x, int n_groups, WeightRef weight, float eps); // RMS of each part

// operations/standalone/layout.cpp
TraceTensor slice(const TraceTensor &x, int axis, int64_t begin, int64_t end);
TraceTensor concat(const TraceTensor &a, const TraceTensor &b, int axis);
TraceTensor repeat_heads(const TraceTensor &x, int n); // [rows, h, d] to [rows, h * n, d], each n times in turn

// Scales rows by 1 + beta * log(1 + floor((position + offset) / n_ctx)) (operations/standalone/position_scale.cpp): the
// temperature of Llama 4 and Ministral 3 for long contexts.
struct PositionScale {
    float beta;
    int64_t n_ctx, offset;
};
TraceTensor scale_by_position(const TraceTensor &x, const TraceTensor &positions, PositionScale parameters);

// Hyper-connections (Zhu et al. 2024, with mixing as in Xie et al. 2026; operations/standalone/hyper_connection.cpp): n
// streams in place of one residual.
// x [rows, 2 n + n * n] becomes the weights of a layer's input and output and of the mix of streams: sigmoid(a) + eps,
// 2 * sigmoid(a), and softmax over each row of the matrix, whose columns and rows then are divided by their sums in turn,
// where a = x * scale + base; scale [3], one number for each of the three, base as long as x.
struct HyperConnection {
    int n, iterations;
    float eps;
};
TraceTensor hyper_weights(const TraceTensor &x, WeightRef scale, WeightRef base, HyperConnection parameters);
// The sum of streams [rows, n, dim] by the first n weights: [rows, dim].
TraceTensor hyper_input(const TraceTensor &streams, const TraceTensor &weights);
// Streams after a layer with output y [rows, dim]: stream k is y by its weight, and the sum of streams j by mix[j, k].
TraceTensor hyper_output(const TraceTensor &streams, const TraceTensor &y, const TraceTensor &weights);

// Operations that carry a state of each sequence from row to row (operations/stateful_operation.h); `place` names it.
// Depth-wise causal convolution (operations/standalone/conv_state.cpp): x [tokens, channels], weight [channels,
// kernel], the last tap for the row itself; bias [channels] may be null.  State: [kernel - 1, channels], the oldest
// input first.
TraceTensor conv_state(const TraceTensor &x, WeightRef weight, WeightRef bias, StatePlace place, bool is_silu);

TraceTensor token_shift(const TraceTensor &x, StatePlace place); // x [tokens, n] one row later.  State: [n]

// Mamba.  Both: h = exp(dt * a) * h + dt * x * b, y = h . c + d * x; d may be null.
struct ScanInputs {
    TraceTensor x, dt, b, c;
};
// x, dt [tokens, channels], b, c [tokens, n_state]; a [channels, n_state], d [channels]
// (operations/standalone/selective_scan.cpp). State: channels * n_state, in blocks as
// kernels/rows/recurrent_kernels.h has them.
TraceTensor selective_scan(const ScanInputs &in, WeightRef a, WeightRef d, StatePlace place);
// x [tokens, n_head, head_dim], dt [tokens, n_head], b, c [tokens, n_group, n_state]; a, d [n_head]
// (operations/standalone/outer_state.cpp, as what follows).  State: [n_head][n_state * head_dim].
TraceTensor state_space_dual(const ScanInputs &in, WeightRef a, WeightRef d, StatePlace place);

// Linear attention whose past fades at a rate of each head (Sun et al. 2023): S = exp(decay) S + k v, out = q S.  q, k
// [tokens, n_key_head, n_key], v [tokens, n_head, n_value], decay [n_head], not above 0.  State: [n_head][n_key *
// n_value].
TraceTensor retention(const TraceTensor &q, const TraceTensor &k, const TraceTensor &v, WeightRef decay,
                      StatePlace place);

// Gated delta rule: S = exp(g) S, S += k (beta * (v - k S)), out = q S.  q, k [tokens, n_key_head, n_key], v [tokens,
// n_head, n_value], g [tokens, n_head] or [tokens, n_head, n_key], beta [tokens, n_head].  State: [n_head][n_key *
// n_value]. Head h reads key h / (n_head / n_key_head), or h % n_key_head where keys are tiled.
struct DeltaInputs {
    TraceTensor q, k, v, g, beta;
};
TraceTensor gated_delta(const DeltaInputs &in, StatePlace place, bool is_tiled);

// RWKV's mixing: r, w, k [tokens, n_head, n_key], v [tokens, n_head, n_value]; w are logarithms of decays, not above 0.
// State: [n_head][n_key * n_value].
struct WkvInputs {
    TraceTensor r, w, k, v;
};
TraceTensor wkv6(const WkvInputs &in, WeightRef u, StatePlace place); // u [n_head, n_key]
TraceTensor wkv7(const WkvInputs &in, const TraceTensor &a, const TraceTensor &b, StatePlace place);

} // namespace quire
