#include "graph/stock/head_chain.h"

#include <cstring>
#include <optional>

#include "graph/stock/own_nodes.h"
#include "graph/stock/stock_parts.h"

namespace quire {
namespace {

// A rotation's parameters as ggml keeps them.
struct Turn {
    int32_t unused, n_dims, mode, unused_either, n_ctx_orig;
    float freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow;
    bool operator==(const Turn &) const = default;
};

struct HeadChain {
    StockNormed from;
    ggml_tensor *positions, *factors;
    Turn turn{};
};

// Heads that are rotated, and possibly normed first.
std::optional<HeadChain> chain_of(ggml_tensor *heads) {
    if (heads->op != GGML_OP_ROPE) return std::nullopt;
    HeadChain chain{before_norm(heads->src[0]), heads->src[1], heads->src[2]};
    std::memcpy(&chain.turn, heads->op_params, sizeof(chain.turn));
    return chain;
}

} // namespace

ggml_tensor *cached_heads(StockGraph &graph, const StockHeads &heads, ggml_tensor *k_pool, ggml_tensor *v_pool,
                          ggml_tensor *slots) {
    const std::optional<HeadChain> q = chain_of(heads.q), k = chain_of(heads.k);
    if (!q || !k || q->turn != k->turn || q->positions != k->positions || q->factors != k->factors) return nullptr;
    const Turn &turn = q->turn;
    if (turn.ext_factor != 0 || (turn.mode != GGML_ROPE_TYPE_NORMAL && turn.mode != GGML_ROPE_TYPE_NEOX))
        return nullptr;
    if (q->from.is_normed && k->from.is_normed && q->from.eps != k->from.eps) return nullptr;
    if (heads.v->op == GGML_OP_PERMUTE || heads.v->ne[0] != heads.k->ne[0]) return nullptr;
    CacheHeads params;
    params.norms_q = static_cast<uint8_t>(q->from.is_normed);
    params.norms_k = static_cast<uint8_t>(k->from.is_normed);
    params.halves = static_cast<uint8_t>(turn.mode == GGML_ROPE_TYPE_NEOX);
    params.eps = q->from.is_normed ? q->from.eps : k->from.eps;
    params.freq_base = turn.freq_base;
    params.freq_scale = turn.freq_scale;
    params.magnitude = turn.attn_factor;
    params.n_dims = turn.n_dims;
    ggml_tensor *made = cache_heads_node(graph.context(),
                                         {q->from.x, k->from.x, heads.v, k_pool, v_pool, slots, q->positions,
                                          q->from.weight, k->from.weight, q->factors},
                                         params);
    return has_own_node(graph.device, made) ? made : nullptr;
}

} // namespace quire
