// The fused operations by name.  All throw ShapeError if shapes do not match.
#pragma once

#include <array>
#include <optional>

#include "graph/trace/tracer.h"
#include "kernels/rows/row_kernels.h"

namespace quire {

// operations/fused/embed.cpp, linear.cpp, rms_norm.cpp
TraceTensor embed(const TraceTensor &tokens, WeightRef weight);
TraceTensor linear(const TraceTensor &x, WeightRef weight, WeightRef bias);     // bias may be null
TraceTensor rms_norm(const TraceTensor &x, WeightRef weight, float eps);        // weight may be null

// x [rows, h, n_in] times weight [h, n_out, n_in], each head with its own matrix (operations/fused/head_product.cpp).
TraceTensor head_linear(const TraceTensor &x, WeightRef weight);

// operations/fused/rope.cpp
enum class RopeLayout { half, interleaved };
struct RopeSpec {
    int n_dims;
    RopeLayout layout;
    float freq_base;
    float freq_scale;
    float ext_factor;
    float attn_factor;
    float beta_fast;
    float beta_slow;
    int n_ctx_orig;
    WeightRef factors; // may be null
    // How many pairs turn by the row's place in time, height and width (M-RoPE, Wang et al. 2024): one after the
    // other, or taking turns (Qwen3-VL).  Zeros: all by its position.
    std::array<int, 3> sections{};
    bool take_turns = false;
    bool inverse = false; // turns back
    int behind = 0; // turns by the position that is so many before the row's
    bool has_sections() const { return sections != std::array<int, 3>{}; }
    int axis_of(int pair) const; // 0: time, 1: height, 2: width
    bool operator==(const RopeSpec &) const = default;
};
TraceTensor rope(const TraceTensor &x, const TraceTensor &positions, RopeSpec spec);

struct Heads {
    TraceTensor q, k, v; // [tokens, n_head or n_kv_head, head_dim]
};
// operations/fused/attend.cpp
struct AttendSpec {
    int layer;
    float scale;
    float soft_cap;
    WeightRef sinks, bias; // either may be null; bias [n_head, n]: see DistanceBias
    std::optional<TraceTensor> picked = std::nullopt; // by pick() or pick_blocks(): what a row attends to
};
TraceTensor attend(const Heads &heads, AttendSpec spec);
// For layers that keep V within K: q [tokens, n_head, head_dim], k [tokens, 1, head_dim].
TraceTensor attend_latent(const TraceTensor &q, const TraceTensor &k, AttendSpec spec);
TraceTensor attend_to_written(const TraceTensor &q,
                              AttendSpec spec); // by another operation of the step, or write_source
// The tokens that each row attends to, picked by an indexer whose rows k [tokens, 1, head_dim] another latent layer
// keeps: those with the largest sums over heads of weights * max(q . k, 0), q [tokens, n_head, head_dim], weights
// [tokens, n_head].  The result, [tokens, n_ctx], is for `AttendSpec::picked` only (operations/fused/pick.cpp).
struct PickSpec {
    int layer; // where the indexer keeps its rows
    int n_picked;
    int n_ctx; // the longest context; the result has as many numbers, or one for each row where tokens share rows
};
TraceTensor pick(const TraceTensor &q, const TraceTensor &k, const TraceTensor &weights, PickSpec spec);
// The blocks of tokens that heads of an indexer pick for each row (operations/fused/pick_blocks.cpp): those with the
// largest q . k of any token, q [tokens, n_head, head_dim], and the last n_local ones.  The layer keeps k [tokens, 1,
// head_dim].  The result is for `AttendSpec::picked` only; each of the indexer's heads picks for as many heads in a row.
struct PickBlocksSpec {
    int layer;
    int block; // tokens, a multiple of 32
    int n_picked, n_local;
};
TraceTensor pick_blocks(const TraceTensor &q, const TraceTensor &k, const PickBlocksSpec &spec);
// Compressed attention (DeepSeek-AI 2026; operations/fused/compress.cpp, attend_compressed.cpp): `every` tokens in a row
// share one row of keys and values, a mean of theirs.  On the CPU only.
//
// kv and gate, [tokens, n]: written to a layer of as many numbers in K and in V.  The result has, for the last of every n
// tokens, the mean of their kv weighed by softmax(gate + bias) for each number, else zeros; bias [every, n].  With
// `overlaps`, the second halves of rows are the tokens' part in it, and first halves their part in the next n tokens'.
struct CompressSpec {
    int layer, every;
    bool overlaps;
    WeightRef bias;
};
TraceTensor compress(const TraceTensor &kv, const TraceTensor &gate, CompressSpec spec);
// q [tokens, n_head, head_dim] attends to the last tokens' rows k [tokens, 1, head_dim], which layer `local` keeps, and
// to earlier tokens' compressed rows, [tokens, head_dim], which layer `compressed` keeps: to all whose tokens have all
// come, or those picked.  Keys are values.
struct AttendCompressedSpec {
    int local, compressed;
    float scale;
    WeightRef sinks; // may be null
    std::optional<TraceTensor> picked = std::nullopt;
};
TraceTensor attend_compressed(const TraceTensor &q, const TraceTensor &k, const TraceTensor &compressed,
                              AttendCompressedSpec spec);
// q [tokens, n_head, head_dim] attends to the tokens of the pools that `picked` has, by pick() from rows that `every`
// tokens share, and to those after the last whole pool.  The layer keeps k [tokens, 1, head_dim]; keys are values.
TraceTensor attend_pools(int layer, const TraceTensor &q, const TraceTensor &k, const TraceTensor &picked, int every,
                         float scale);
// Cross attention, from both sides: the encoder's trace writes K and V of the source to a layer
// (operations/fused/write_source.cpp); in the other trace each row attends to all of them, with attend_to_written.
void write_source(int layer, const TraceTensor &k, const TraceTensor &v);
// Rows of a sequence attend to each other both ways, and nothing is cached (operations/fused/attend_rows.cpp).
struct AttendRowsSpec {
    float scale;
    float soft_cap;
    int window; // w: w / 2 positions to either side; 0: all
    WeightRef bias; // as above, [n_head, odd]; may be null
    std::optional<TraceTensor> related = std::nullopt; // by relate(): added to scores, in the place of `bias`
};
TraceTensor attend_rows(const Heads &heads, AttendRowsSpec spec);
// Scores of a row and a token that depend on both and on their distance (operations/fused/relate.cpp): by_row and
// by_token [tokens, n_head, n] have a number for each bucket of distances.  The result, [tokens, n_head, n_ctx], is for
// `AttendRowsSpec::related` only.
struct RelateSpec {
    std::vector<int32_t> buckets; // by distance: the middle one of the token itself, later ones of later tokens
    int n_ctx; // the longest context
};
TraceTensor relate(const TraceTensor &by_row, const TraceTensor &by_token, RelateSpec spec);

// Each number by itself (operations/fused/elements.cpp).
TraceTensor add(const TraceTensor &a, const TraceTensor &b);
TraceTensor multiply(const TraceTensor &a, const TraceTensor &b);
TraceTensor scale(const TraceTensor &x, float factor);
TraceTensor glu(const TraceTensor &gate, const TraceTensor &up, Activation activation);
TraceTensor activate(const TraceTensor &x, Activation activation);
TraceTensor soft_cap(const TraceTensor &x, float cap);

// operations/fused/reshape.cpp, select_rows.cpp
TraceTensor heads(const TraceTensor &x, int n_head);
TraceTensor merge_heads(const TraceTensor &x);
TraceTensor reshape(const TraceTensor &x, std::vector<int64_t> rest);
TraceTensor select_rows(const TraceTensor &x, const TraceTensor &rows);

// From a router's scores to the experts of a token and their weights (operations/fused/moe.cpp).
enum class Gating {
    softmax, // over all experts
    sigmoid, // each score by itself
    softmax_of_chosen, // over the scores of those chosen
    sigmoid_of_chosen, // each score by itself; chosen by scores, with their biases, before the sigmoid
    sparse_mixer, // each chosen one over those left whose scores are near its own (Liu et al. 2024)
    sqrt_softplus, // each score by itself: sqrt(log(1 + exp(score)))
};
inline constexpr float mixer_jitter =
    0.01F; // near: within twice this part of the larger of both, as models are trained
enum class GroupScore { largest, two_largest }; // ranks groups of experts: by a number, or the sum of two
struct Routing {
    int n_used;
    Gating gating;
    bool normalize; // weights are divided by their sum
    float scale;
    int n_group = 1, n_group_used = 1; // only experts of the best groups are chosen
    GroupScore group_score = GroupScore::two_largest;
};

// The unit between an expert's matrices.
enum class ExpertUnit {
    gated, // activation(gate) * up
    clamped_swiglu, // gpt-oss's
    clipped, // min(activation(gate), limit) * clamp(up, -limit, limit)
    clamped, // activation(min(gate, limit)) * clamp(up, -limit, limit)
    tanh_capped, // alpha * tanh(gate / alpha) * sigmoid(gate) * limit * tanh(up / limit)
    ungated, // activation(up)
};
struct MoeSpec {
    Routing routing;
    ExpertUnit unit;
    Activation activation;
    bool is_squared = false; // activation(up) ** 2, of ungated ones
    float alpha = 1.702F, limit = 7.0F; // for units that have them
    bool weighs_input = false; // the weight goes to the expert's input instead of its output
    int first_expert = -1; // the weights are of some experts only, from this one on; -1: of all
};
struct MoeWeights {
    WeightRef gate, up, down; // gate is null where experts are ungated
    WeightRef selection_bias; // [n_expert] added to what is ranked, not to weights; may be null
    WeightRef expert_scale; // [n_expert] multiplies weights; may be null
    WeightRef gate_bias, up_bias, down_bias; // [n_expert, n]; may be null
};
// `chosen`, [tokens, n_used]: the numbers of each token's experts, instead of those with the best scores.
TraceTensor moe(const TraceTensor &x, const TraceTensor &scores, MoeWeights weights, MoeSpec spec,
                const std::optional<TraceTensor> &chosen = std::nullopt);

} // namespace quire
