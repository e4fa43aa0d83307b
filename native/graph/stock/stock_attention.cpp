#include "graph/stock/stock_attention.h"

#include <ggml-backend.h>

#include <array>
#include <limits>
#include <string_view>

#include "core/environment.h"
#include "core/error.h"
#include "graph/stock/head_chain.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/own_nodes.h"
#include "graph/stock/state_streams.h"

namespace quire {
namespace {

// Reinterprets bytes as numbers of another type.
ggml_tensor *seen_as(ggml_context *ctx, ggml_tensor *x, ggml_type type, const std::array<int64_t, 4> &ne,
                     const std::array<size_t, 3> &strides, size_t offset_bytes = 0) {
    ggml_tensor *view = ggml_view_1d(ctx, x, 1, offset_bytes);
    view->type = type;
    view->nb[0] = ggml_type_size(type);
    for (size_t i = 0; i < 4; ++i) view->ne[i] = ne[i];
    for (size_t i = 0; i < 3; ++i) view->nb[i + 1] = strides[i];
    return view;
}

// ggml's kernels for CUDA (also used for HIP and MUSA) can cap scores only for heads of these widths.  Its check of
// supported operations ignores that, and other widths end in an illegal instruction.
bool caps_scores(ggml_backend *device, int64_t head_dim) {
    const std::string_view name = ggml_backend_reg_name(ggml_backend_dev_backend_reg(ggml_backend_get_device(device)));
    if (name != "CUDA" && name != "ROCm" && name != "MUSA") return true;
    return head_dim == 128 || head_dim == 256 || head_dim == 512;
}

class AttentionBuilder {
  public:
    AttentionBuilder(const StockParts &parts, const StockAttention &attention)
        : p_(parts), graph_(*parts.graph), ctx_(parts.context), attention_(attention),
          kept_(graph_.trace.cache[static_cast<size_t>(attention.layer)].rows.value()),
          group_(graph_.store.layout().group_of(attention.layer).value()), q_(parts.inputs[0]) {}

    ggml_tensor *build();
    ggml_tensor *pick(int n_picked);

  private:
    ggml_tensor *cached(const AttentionPart &part, int i, ggml_tensor *pool, int64_t head_dim);
    ggml_tensor *part(const AttentionPart &part, int i);
    bool write();
    void write_rows(size_t n_heads);
    ggml_tensor *picked_mask(const AttentionPart &part, int i, ggml_tensor *scores, int n_picked);
    ggml_tensor *rows_of(const AttentionPart &part, int i, ggml_tensor *x);
    ggml_tensor *mask_of(const AttentionPart &part, int i);
    ggml_tensor *paged(const AttentionPart &part, int i, ggml_tensor *q);
    ggml_tensor *flash(ggml_tensor *q, ggml_tensor *k, ggml_tensor *v, ggml_tensor *mask);
    ggml_tensor *by_scores(const AttentionPart &part, int i, ggml_tensor *q, ggml_tensor *k, ggml_tensor *v,
                           ggml_tensor *mask);
    ggml_tensor *in_f32(ggml_tensor *x) { // and contiguous
        if (x->type != GGML_TYPE_F32) return ggml_cast(ctx_, x, GGML_TYPE_F32);
        return ggml_is_contiguous(x) ? x : ggml_cont(ctx_, x);
    }
    ggml_tensor *input(std::map<PartPlace, ggml_tensor *> &inputs, PartPlace place, ggml_type type,
                       std::initializer_list<int64_t> ne, const char *label) {
        return graph_.shared_input(inputs, place, [&] { return graph_.new_input(type, ne, label); });
    }

    const StockParts &p_;
    StockGraph &graph_;
    ggml_context *ctx_;
    const StockAttention &attention_;
    const CacheRows &kept_;
    int group_;
    ggml_tensor *q_;
};

// {head_dim, n_kv, n_kv_head, n_streams}, in place or copied by blocks.
ggml_tensor *AttentionBuilder::cached(const AttentionPart &part, int i, ggml_tensor *pool, int64_t head_dim) {
    const size_t head = ggml_row_size(pool->type, head_dim), token = pool->nb[1];
    const int64_t n_blocks = part.n_kv / kv_block_tokens;
    ggml_tensor *from = pool;
    if (part.source != CachedRows::pool) {
        ggml_tensor *table =
            input(graph_.out.inputs.blocks, {group_, i}, GGML_TYPE_I32, {part.n_streams * n_blocks}, "blocks");
        // As integers, rows are copied unchanged.
        const size_t block = token * kv_block_tokens;
        const auto n = static_cast<int64_t>(block / sizeof(int32_t));
        const size_t all = ggml_nbytes(pool);
        ggml_tensor *blocks =
            seen_as(ctx_, pool, GGML_TYPE_I32, {n, static_cast<int64_t>(all / block), 1, 1}, {block, all, all});
        from = ggml_get_rows(ctx_, blocks, table);
    }
    return seen_as(ctx_, from, pool->type, {head_dim, part.n_kv, kept_.n_kv_head, part.n_streams},
                   {token, head, token * static_cast<size_t>(part.n_kv)}, token * static_cast<size_t>(part.first_kv));
}

ggml_tensor *AttentionBuilder::flash(ggml_tensor *q, ggml_tensor *k, ggml_tensor *v, ggml_tensor *mask) {
    if (graph_.device == nullptr || attention_.bias) return nullptr;
    if (attention_.soft_cap > 0 && !caps_scores(graph_.device, v->ne[0])) return nullptr;
    ggml_tensor *made = ggml_flash_attn_ext(ctx_, q, k, v, mask, attention_.scale, 0.0F, attention_.soft_cap);
    if (attention_.sinks) ggml_flash_attn_ext_add_sinks(made, p_.weight(attention_.sinks));
    return ggml_backend_supports_op(graph_.device, made) ? made : nullptr;
}

ggml_tensor *AttentionBuilder::by_scores(const AttentionPart &part, int i, ggml_tensor *q, ggml_tensor *k,
                                         ggml_tensor *v, ggml_tensor *mask) {
    ggml_tensor *scores = ggml_mul_mat(ctx_, in_f32(k), q); // {n_kv, rows, n_head, n_streams}
    float scale = attention_.scale;
    if (attention_.soft_cap > 0 || attention_.bias) {
        scores = scale == 1.0F ? scores : ggml_scale(ctx_, scores, scale);
        scale = 1.0F;
    }
    if (attention_.soft_cap > 0) scores = stock_soft_cap(ctx_, scores, attention_.soft_cap);
    if (attention_.bias) {
        const auto n = static_cast<int>(attention_.bias->tensor.shape()[1]);
        ggml_tensor *columns = input(graph_.out.inputs.bias_columns, {group_, i, n}, GGML_TYPE_I32,
                                     {part.n_kv, part.stream_rows, part.n_streams}, "bias_columns");
        scores = stock_with_bias(p_, scores, attention_.bias, columns);
    }
    ggml_tensor *odds = ggml_soft_max_ext(ctx_, scores, mask, scale, 0.0F);
    if (attention_.sinks) ggml_soft_max_add_sinks(odds, p_.weight(attention_.sinks));
    ggml_tensor *mixed = ggml_mul_mat(ctx_, in_f32(ggml_permute(ctx_, v, 1, 0, 2, 3)), odds);
    return ggml_cont(ctx_, ggml_permute(ctx_, mixed, 0, 2, 1, 3));
}

// `q` and the result: {head_dim, n_head, rows}.  Null if there is no kernel; for the form `paged`, the graph is then a
// probe for support.
ggml_tensor *AttentionBuilder::paged(const AttentionPart &part, int i, ggml_tensor *q) {
    if (attention_.bias || attention_.is_picked || kept_.v_in_k || kept_.head_dim != kept_.v_head_dim ||
        graph_.device == nullptr)
        return nullptr;
    static_assert(paged_block_tokens == kv_block_tokens);
    const bool is_paged = part.source == CachedRows::paged;
    if (!is_paged && !is_switched_on("QUIRE_PROMPT_ATTENTION")) return nullptr; // never timed on a card
    const StockGraph::Written &written = graph_.written.at(attention_.layer);
    ggml_tensor *sinks = attention_.sinks ? p_.weight(attention_.sinks) : nullptr;
    const int64_t n_blocks = part.n_kv / kv_block_tokens;
    auto node = [&](ggml_tensor *tables, ggml_tensor *spans) {
        const PagedSources sources{q, written.k, written.v, tables, spans, sinks};
        if (!is_paged) {
            PromptAttention params;
            params.scale = attention_.scale;
            params.soft_cap = attention_.soft_cap;
            params.stream_rows = part.stream_rows;
            return prompt_attention_node(ctx_, sources, params);
        }
        PagedAttention params;
        params.scale = attention_.scale;
        params.soft_cap = attention_.soft_cap;
        return paged_attention_node(ctx_, sources, params);
    };
    // The inputs exist only if they are read.
    ggml_tensor *tables = ggml_new_tensor_2d(ctx_, GGML_TYPE_I32, n_blocks, part.n_streams),
                *spans = ggml_new_tensor_2d(ctx_, GGML_TYPE_I32, 2, part.n_rows());
    if (!has_own_node(graph_.device, node(tables, spans))) return nullptr;
    GraphInputs &inputs = graph_.out.inputs;
    spans = input(inputs.spans, {group_, i}, GGML_TYPE_I32, {2, part.n_rows()}, "spans");
    // Layers that copy read the same blocks as one list.
    tables = input(inputs.blocks, {group_, i}, GGML_TYPE_I32, {part.n_streams * n_blocks}, "blocks");
    tables = ggml_reshape_2d(ctx_, tables, n_blocks, part.n_streams);
    return node(tables, spans);
}

// The part's rows of x {a, b, n_tokens}, dense.
ggml_tensor *AttentionBuilder::rows_of(const AttentionPart &part, int i, ggml_tensor *x) {
    if (!ggml_is_contiguous(x)) x = ggml_cont(ctx_, x);
    if (graph_.out.key.attention[static_cast<size_t>(group_)].in_order) return x;
    ggml_tensor *rows = input(graph_.out.inputs.rows, {group_, i}, GGML_TYPE_I32, {part.n_rows()}, "rows");
    return ggml_get_rows(ctx_, ggml_reshape_2d(ctx_, x, x->ne[0] * x->ne[1], x->ne[2]), rows);
}

ggml_tensor *AttentionBuilder::mask_of(const AttentionPart &part, int i) {
    return input(graph_.out.inputs.masks, {group_, i}, GGML_TYPE_F16, {part.n_kv, part.stream_rows, 1, part.n_streams},
                 "mask");
}

// {v_head_dim, n_head, rows of the part}
ggml_tensor *AttentionBuilder::part(const AttentionPart &part, int i) {
    const int64_t n_head = q_->ne[1], n = part.n_rows();
    ggml_tensor *q = rows_of(part, i, q_);
    if (part.source == CachedRows::paged || part.source == CachedRows::sequence) {
        ggml_tensor *rows = ggml_reshape_3d(ctx_, q, kept_.head_dim, n_head, n);
        if (ggml_tensor *made = paged(part, i, rows)) return made;
        (part.source == CachedRows::paged ? graph_.out.unpaged_groups : graph_.out.copied_groups).insert(group_);
        if (part.source == CachedRows::paged)
            return ggml_new_tensor_3d(ctx_, GGML_TYPE_F32, kept_.v_head_dim, n_head, n);
    }
    q = ggml_reshape_4d(ctx_, q, kept_.head_dim, n_head, part.stream_rows, part.n_streams);
    q = ggml_permute(ctx_, q, 0, 2, 1, 3);
    const StockGraph::Written &written = graph_.written.at(attention_.layer);
    ggml_tensor *k = cached(part, i, written.k, kept_.head_dim);
    ggml_tensor *v = nullptr;
    if (kept_.v_in_k)
        v = ggml_view_4d(ctx_, k, kept_.v_head_dim, k->ne[1], k->ne[2], k->ne[3], k->nb[1], k->nb[2], k->nb[3], 0);
    else
        v = cached(part, i, written.v, kept_.v_head_dim);
    ggml_tensor *mask = nullptr;
    if (!attention_.is_picked)
        mask = mask_of(part, i);
    else if (const auto picked = graph_.picked.find({p_.inputs.back(), i}); picked != graph_.picked.end())
        mask = picked->second;
    else
        throw UnsupportedError("attend", cat("layer ", attention_.layer,
                                             " attends to tokens that a layer on another device picks: unsupported"));
    ggml_tensor *made = flash(q, k, v, mask);
    if (made == nullptr) {
        graph_.out.explicit_groups.insert(group_);
        made = by_scores(part, i, q, k, v, mask);
    }
    return ggml_reshape_3d(ctx_, made, kept_.v_head_dim, n_head, n);
}

// All operations before attention in one node, if the device has a kernel for it.
bool AttentionBuilder::write() {
    if (graph_.device == nullptr || p_.inputs.size() < 3 || kept_.v_in_k) return false;
    const KvStore::Rows &pools = graph_.store.rows(attention_.layer);
    ggml_tensor *made = cached_heads(graph_, {p_.inputs[0], p_.inputs[1], p_.inputs[2]}, pools.k.handle(),
                                     pools.v.handle(), stock_slots(graph_, group_));
    if (made == nullptr) return false;
    // Readers of the pools do not refer to this node, so it is added to the graph before them.
    ggml_build_forward_expand(graph_.out.graph, made);
    q_ = made;
    return true;
}

// The first rows among the inputs are q, k and v.
void AttentionBuilder::write_rows(size_t n_heads) {
    const KvStore::Rows &pools = graph_.store.rows(attention_.layer);
    // Rows written by an earlier step or piece are in the pools already.
    graph_.written.try_emplace(attention_.layer, StockGraph::Written{pools.k.handle(), pools.v.handle()});
    if (n_heads == 1 || write()) return;
    ggml_tensor *k = stock_stored(graph_, group_, p_.inputs[1], pools.k);
    graph_.written[attention_.layer] = {k, kept_.v_in_k ? k : stock_stored(graph_, group_, p_.inputs[2], pools.v)};
}

// Hides tokens but those with the largest scores {n_kv, rows, n_streams}.
ggml_tensor *AttentionBuilder::picked_mask(const AttentionPart &part, int i, ggml_tensor *scores, int n_picked) {
    ggml_tensor *mask = mask_of(part, i);
    if (part.n_kv <= n_picked) return mask;
    const int64_t rows = part.n_rows();
    mask = ggml_reshape_2d(ctx_, ggml_cast(ctx_, mask, GGML_TYPE_F32), part.n_kv, rows);
    scores = ggml_add(ctx_, ggml_reshape_2d(ctx_, scores, part.n_kv, rows), mask);
    ggml_tensor *best = ggml_cont(ctx_, ggml_argsort_top_k(ctx_, scores, n_picked)); // {n_picked, rows}
    mask = ggml_reshape_3d(ctx_, mask, 1, part.n_kv, rows);
    ggml_tensor *hidden = ggml_fill(ctx_, mask, -std::numeric_limits<float>::infinity());
    mask = ggml_set_rows(ctx_, hidden, ggml_get_rows(ctx_, mask, best), best);
    return ggml_cast(ctx_, ggml_reshape_4d(ctx_, mask, part.n_kv, part.stream_rows, 1, part.n_streams), GGML_TYPE_F16);
}

ggml_tensor *AttentionBuilder::pick(int n_picked) {
    write_rows(2);
    const int64_t n_head = q_->ne[1];
    ggml_tensor *weights = ggml_reshape_3d(ctx_, stock_dense(ctx_, p_.inputs[2]), 1, n_head, p_.inputs[2]->ne[1]);
    const std::vector<AttentionPart> &parts = graph_.out.key.attention[static_cast<size_t>(group_)].parts;
    std::vector<ggml_tensor *> masks;
    for (size_t at = 0; at < parts.size(); ++at) {
        const AttentionPart &part = parts[at];
        const int i = static_cast<int>(at);
        ggml_tensor *q =
            ggml_reshape_4d(ctx_, rows_of(part, i, q_), kept_.head_dim, n_head, part.stream_rows, part.n_streams);
        ggml_tensor *w = ggml_reshape_4d(ctx_, rows_of(part, i, weights), n_head, 1, part.stream_rows, part.n_streams);
        ggml_tensor *k = in_f32(cached(part, i, graph_.written.at(attention_.layer).k, kept_.head_dim));
        ggml_tensor *scores = ggml_relu(ctx_, ggml_mul_mat(ctx_, k, ggml_permute(ctx_, q, 0, 2, 1, 3)));
        scores = ggml_cont(ctx_, ggml_permute(ctx_, scores, 1, 2, 0, 3)); // {n_head, n_kv, rows, n_streams}
        masks.push_back(picked_mask(part, i, ggml_mul_mat(ctx_, scores, w), n_picked));
    }
    // The operation's value stands for the masks of all parts.
    for (size_t i = 0; i < masks.size(); ++i) graph_.picked[{masks[0], static_cast<int>(i)}] = masks[i];
    return masks[0];
}

ggml_tensor *AttentionBuilder::build() {
    write_rows(p_.inputs.size() - (attention_.is_picked ? 1 : 0));
    const AttentionForm &form = graph_.out.key.attention[static_cast<size_t>(group_)];
    ggml_tensor *all = nullptr;
    for (size_t i = 0; i < form.parts.size(); ++i) {
        ggml_tensor *made = part(form.parts[i], static_cast<int>(i));
        all = all == nullptr ? made : ggml_concat(ctx_, all, made, 2);
    }
    if (form.in_order) return all;
    const int64_t n = graph_.out.key.n_tokens, size = all->ne[0] * all->ne[1];
    ggml_tensor *places = graph_.shared_input(graph_.out.inputs.places, group_,
                                              [&] { return graph_.new_input(GGML_TYPE_I32, {n}, "places"); });
    ggml_tensor *rows = ggml_get_rows(ctx_, ggml_reshape_2d(ctx_, all, size, all->ne[2]), places);
    return ggml_reshape_3d(ctx_, rows, all->ne[0], all->ne[1], n);
}

} // namespace

ggml_tensor *stock_with_bias(const StockParts &p, ggml_tensor *scores, const WeightRef &bias, ggml_tensor *columns) {
    ggml_context *ctx = p.context;
    ggml_tensor *by_column = ggml_cont(ctx, ggml_transpose(ctx, p.weight(bias))); // {n_head, n}
    ggml_tensor *flat = ggml_reshape_1d(ctx, columns, ggml_nelements(columns));
    ggml_tensor *rows = ggml_reshape_4d(ctx, ggml_get_rows(ctx, by_column, flat), scores->ne[2], scores->ne[0],
                                        scores->ne[1], scores->ne[3]);
    return ggml_add(ctx, scores, ggml_cont(ctx, ggml_permute(ctx, rows, 2, 0, 1, 3)));
}

ggml_tensor *stock_slots(StockGraph &graph, int group) {
    return graph.shared_input(graph.out.inputs.slots, group,
                              [&] { return graph.new_input(GGML_TYPE_I64, {graph.out.key.n_tokens}, "slots"); });
}

// A view before the write lets ggml fuse the write with the node that made the rows.
ggml_tensor *stock_stored(StockGraph &graph, int group, ggml_tensor *x, const Tensor &pool) {
    ggml_context *ctx = graph.context();
    const int64_t n = graph.out.key.n_tokens;
    ggml_tensor *slots = stock_slots(graph, group);
    if (!ggml_is_contiguous(x)) x = ggml_cont(ctx, x);
    // Attention multiplies rows that a mask hides by 0, so one that is no number would change other sequences' results.
    // An adapter's products may overflow: clamp makes NaN finite, too.
    if (graph.out.key.n_adapters > 0) {
        const float most = pool.dtype() == DType::f16 ? 65504.0F : 0x1p60F;
        x = ggml_clamp(ctx, x, -most, most);
    }
    const int64_t size = x->ne[0] * x->ne[1];
    ggml_tensor *rows = ggml_view_2d(ctx, x, size, n, static_cast<size_t>(size) * sizeof(float), 0);
    return ggml_set_rows(ctx, pool.handle(), rows, slots);
}

ggml_tensor *stock_attention(const StockParts &parts, const StockAttention &attention) {
    return AttentionBuilder(parts, attention).build();
}

ggml_tensor *stock_pick(const StockParts &parts, const StockPick &pick) {
    const StockAttention attention{pick.layer, 1.0F, 0.0F, nullptr, nullptr};
    return AttentionBuilder(parts, attention).pick(pick.n_picked);
}

} // namespace quire
