// Attention of a step's tokens to what a layer keeps, the step's own tokens included.
#include "core/error.h"
#include "graph/cpu_lowering.h"
#include "graph/lower_stock.h"
#include "graph/operations/attention_nodes.h"
#include "graph/shape_checks.h"
#include "graph/stock_parts.h"

namespace quire {
namespace {

// Inputs: q, k, v; q and k, where the layer keeps V within K; or q alone, which attends to what another operation of the
// step has written to the layer, or the encoder, where the layer's rows are those of a source text.
class Attend : public OperationKind {
  public:
    explicit Attend(AttendSpec spec) : spec_(std::move(spec)) {}
    std::string describe() const override { return cat("attend layer ", spec_.layer); }
    size_t n_tensors() const override { return 40; }
    ggml_tensor *lower(const StockParts &parts) const override;
    void prepare(CpuLowering &lowering, int i) const override;
    void add_nodes(CpuLowering &lowering, int i) const override;

  private:
    AttendSpec spec_;
};

ggml_tensor *gathered(StockGraph &graph, GroupHeads of, ggml_tensor *pool) {
    const int64_t n_kv = graph.out.key.n_kv;
    ggml_tensor *rows = graph.shared_input(graph.out.inputs.gather_rows, of, [&] {
        return graph.new_input(GGML_TYPE_I32, n_kv * of.n_kv_head, 0, "gather_rows");
    });
    ggml_tensor *all = ggml_get_rows(graph.context(), pool, rows);
    return ggml_reshape_3d(graph.context(), all, all->ne[0], n_kv, of.n_kv_head);
}

// Gathers the cached rows into one array and masks.
ggml_tensor *Attend::lower(const StockParts &p) const {
    ggml_context *ctx = p.context;
    StockGraph &graph = *p.graph;
    const CacheRows &kept = graph.trace.cache[static_cast<size_t>(spec_.layer)].rows.value();
    const GroupHeads of{graph.store.layout().group_of(spec_.layer).value(), kept.n_kv_head};
    const KvStore::Rows &pools = graph.store.rows(spec_.layer);
    if (kept.of_source) graph.written[spec_.layer] = {pools.k.handle(), pools.v.handle()};
    if (p.inputs.size() > 1) {
        ggml_tensor *k = stock_stored(graph, of, p.inputs[1], pools.k);
        graph.written[spec_.layer] = {k, kept.v_in_k ? k : stock_stored(graph, of, p.inputs[2], pools.v)};
    }
    const StockGraph::Written &written = graph.written.at(spec_.layer);
    ggml_tensor *k = gathered(graph, of, written.k);
    ggml_tensor *v = kept.v_in_k ? ggml_view_3d(ctx, k, kept.v_head_dim, k->ne[1], k->ne[2], k->nb[1], k->nb[2], 0)
                                 : gathered(graph, of, written.v);
    ggml_tensor *scores = ggml_mul_mat(ctx, k, ggml_permute(ctx, p.inputs[0], 0, 2, 1, 3)); // [n_head, n_tokens, n_kv]
    float scale = spec_.scale;
    if (spec_.soft_cap > 0) {
        scores = stock_soft_cap(ctx, ggml_scale(ctx, scores, scale), spec_.soft_cap);
        scale = 1.0F;
    }
    const GraphKey &key = graph.out.key;
    if (spec_.bias) {
        scores = scale == 1.0F ? scores : ggml_scale(ctx, scores, scale);
        scale = 1.0F;
        const auto n = static_cast<int>(spec_.bias->tensor.shape()[1]);
        ggml_tensor *columns = graph.shared_input(graph.out.inputs.bias_columns, n, [&] {
            return graph.new_input(GGML_TYPE_I32, key.n_kv, key.n_tokens, "bias_columns");
        });
        scores = stock_with_bias(p, scores, spec_.bias, columns);
    }
    ggml_tensor *mask = graph.shared_input(graph.out.inputs.masks, kept.lifetime(), [&] {
        return graph.new_input(GGML_TYPE_F32, key.n_kv, key.n_tokens, "mask");
    });
    ggml_tensor *odds = ggml_soft_max_ext(ctx, scores, mask, scale, 0.0F);
    if (spec_.sinks) ggml_soft_max_add_sinks(odds, p.weight(spec_.sinks));
    ggml_tensor *mixed = ggml_mul_mat(ctx, ggml_cont(ctx, ggml_permute(ctx, v, 1, 0, 2, 3)), odds);
    return ggml_cont(ctx, ggml_permute(ctx, mixed, 0, 2, 1, 3));
}

void Attend::prepare(CpuLowering &lowering, int i) const {
    mark_head_steps(lowering, i, 0);
    if (lowering.n_inputs(i) > 1) mark_head_steps(lowering, i, 1);
}

void Attend::add_nodes(CpuLowering &lowering, int i) const {
    const CacheRows &kept = lowering.trace().cache[static_cast<size_t>(spec_.layer)].rows.value();
    const CacheLayout &layout = lowering.store().layout();
    const KvStore::Rows &pools = lowering.store().rows(spec_.layer);
    const int n_head = static_cast<int>(lowering.rest(lowering.input(i))[0]);
    const CacheTypes types = layout.types();
    AttentionShape shape{n_head,           kept.n_kv_head, kept.head_dim,  kept.v_head_dim, kv_type(types.k),
                         kv_type(types.v), spec_.scale,    spec_.soft_cap, kept.window,     kept.chunk};
    shape.v_in_k = kept.v_in_k;
    shape.both_ways = kept.of_source;
    add_attention(lowering, i,
                  {layout.group_of(spec_.layer).value(),
                   shape,
                   {pools.k.data(), pools.v.data(), nullptr, nullptr},
                   weight_floats(spec_.sinks),
                   distance_bias(spec_.bias)});
}

void expect_spec(const AttendSpec &spec, int64_t n_head) {
    expect_positive("attend", "scale", spec.scale);
    expect_not_negative("attend", "soft_cap", spec.soft_cap);
    expect_f32("attend", spec.sinks, {n_head});
    expect_bias("attend", spec.bias, n_head);
}

} // namespace

TraceTensor attend_to_written(const TraceTensor &q, AttendSpec spec) {
    expect_rank("attend", "q", q, 2);
    expect_tokens("attend", "q", q);
    const CacheRows &kept = q.tracer->rows_of(spec.layer);
    const int64_t n_head = q.shape().rest[0];
    if (kept.of_source && spec.bias)
        throw ShapeError("attend", "rows of a source text must be without a bias by distance but have one");
    if (!kept.of_source && !q.tracer->is_written(spec.layer))
        throw ShapeError("attend", cat("K and V of layer ", spec.layer, " must be written before but are not"));
    if (q.shape().rest[1] != kept.head_dim || n_head % kept.n_kv_head != 0)
        throw ShapeError("attend", cat("q must fit the cache of layer ", spec.layer, " (", kept.n_kv_head, " heads of ",
                                       kept.head_dim, ") but is ", shape_text(q.shape())));
    expect_spec(spec, n_head);
    return q.tracer->record(std::make_shared<Attend>(std::move(spec)), {q}, {Lead::tokens, {n_head, kept.v_head_dim}});
}

TraceTensor attend(const Heads &heads, AttendSpec spec) {
    const auto &[q, k, v] = heads;
    for (const auto &[name, x] : {std::pair("q", &q), std::pair("k", &k), std::pair("v", &v)}) {
        expect_rank("attend", name, *x, 2);
        expect_tokens("attend", name, *x);
    }
    const CacheRows &kept = q.tracer->rows_of(spec.layer);
    if (kept.v_in_k)
        throw ShapeError("attend", cat("layer ", spec.layer, " must keep an array of values but has them in its keys"));
    if (kept.of_source)
        throw ShapeError("attend", cat("layer ", spec.layer, " must keep the step's own rows but keeps a source's"));
    const std::vector<int64_t> wanted_k{kept.n_kv_head, kept.head_dim}, wanted_v{kept.n_kv_head, kept.v_head_dim};
    const int64_t n_head = q.shape().rest[0];
    if (k.shape().rest != wanted_k || v.shape().rest != wanted_v || q.shape().rest[1] != kept.head_dim ||
        n_head % kept.n_kv_head != 0)
        throw ShapeError("attend",
                         cat("q, k, v must fit the cache of layer ", spec.layer, " (", kept.n_kv_head, " heads of ",
                             kept.head_dim, ", values of ", kept.v_head_dim, ") but are ", shape_text(q.shape()), ", ",
                             shape_text(k.shape()), ", ", shape_text(v.shape())));
    expect_spec(spec, n_head);
    q.tracer->mark_written(spec.layer);
    return q.tracer->record(std::make_shared<Attend>(std::move(spec)), {q, k, v},
                            {Lead::tokens, {n_head, kept.v_head_dim}});
}

TraceTensor attend_latent(const TraceTensor &q, const TraceTensor &k, AttendSpec spec) {
    for (const auto &[name, x] : {std::pair("q", &q), std::pair("k", &k)}) {
        expect_rank("attend", name, *x, 2);
        expect_tokens("attend", name, *x);
    }
    const CacheRows &kept = q.tracer->rows_of(spec.layer);
    if (!kept.v_in_k)
        throw ShapeError("attend",
                         cat("layer ", spec.layer, " must have values in its keys but keeps an array of them"));
    const std::vector<int64_t> wanted{1, kept.head_dim};
    const int64_t n_head = q.shape().rest[0];
    if (k.shape().rest != wanted || q.shape().rest[1] != kept.head_dim)
        throw ShapeError("attend", cat("q and k must fit the rows of layer ", spec.layer, ", ", kept.head_dim,
                                       " numbers, but are ", shape_text(q.shape()), ", ", shape_text(k.shape())));
    expect_spec(spec, n_head);
    q.tracer->mark_written(spec.layer);
    return q.tracer->record(std::make_shared<Attend>(std::move(spec)), {q, k},
                            {Lead::tokens, {n_head, kept.v_head_dim}});
}

} // namespace quire
