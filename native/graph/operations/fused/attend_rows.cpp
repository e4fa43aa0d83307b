// Attention of the rows of each sequence to each other, both ways.  Nothing is cached.
#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/operations/fused/attention_nodes.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/stock_attention.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

class AttendRows : public OperationKind {
  public:
    explicit AttendRows(AttendRowsSpec spec) : spec_(std::move(spec)), is_related_(spec_.related) {
        spec_.related.reset(); // an input, whose tracer would hold this operation
    }
    std::string describe() const override { return "attend_rows"; }
    size_t n_tensors() const override { return 40; }
    bool attends_both_ways() const override { return true; }
    ggml_tensor *lower(const StockParts &parts) const override;
    void prepare(CpuLowering &lowering, int i) const override {
        mark_head_steps(lowering, i, 0);
        mark_head_steps(lowering, i, 1);
    }
    void add_nodes(CpuLowering &lowering, int i) const override;

  private:
    AttendRowsSpec spec_;
    bool is_related_;
};

// All scores, masked.
ggml_tensor *AttendRows::lower(const StockParts &p) const {
    ggml_context *ctx = p.context;
    StockGraph &graph = *p.graph;
    ggml_tensor *k = ggml_cont(ctx, ggml_permute(ctx, p.inputs[1], 0, 2, 1, 3)); // {head_dim, n_tokens, n_kv_head}
    ggml_tensor *v = ggml_cont(ctx, ggml_permute(ctx, p.inputs[2], 1, 2, 0, 3)); // {n_tokens, head_dim, n_kv_head}
    ggml_tensor *scores = ggml_mul_mat(ctx, k, ggml_permute(ctx, p.inputs[0], 0, 2, 1, 3));
    float scale = spec_.scale;
    if (spec_.soft_cap > 0) {
        scores = stock_soft_cap(ctx, ggml_scale(ctx, scores, scale), spec_.soft_cap);
        scale = 1.0F;
    }
    const int64_t n = graph.out.key.n_tokens;
    if (spec_.bias) {
        scores = scale == 1.0F ? scores : ggml_scale(ctx, scores, scale);
        scale = 1.0F;
        const auto n_columns = static_cast<int>(spec_.bias->tensor.shape()[1]);
        ggml_tensor *columns = graph.shared_input(graph.out.inputs.row_bias_columns, n_columns, [&] {
            return graph.new_input(GGML_TYPE_I32, {n, n}, "bias_columns");
        });
        scores = stock_with_bias(p, scores, spec_.bias, columns);
    }
    if (is_related_) {
        scores = ggml_add(ctx, scale == 1.0F ? scores : ggml_scale(ctx, scores, scale), p.inputs[3]);
        scale = 1.0F;
    }
    ggml_tensor *mask = graph.shared_input(graph.out.inputs.row_masks, spec_.window,
                                           [&] { return graph.new_input(GGML_TYPE_F32, {n, n}, "row_mask"); });
    ggml_tensor *odds = ggml_soft_max_ext(ctx, scores, mask, scale, 0.0F);
    return ggml_cont(ctx, ggml_permute(ctx, ggml_mul_mat(ctx, v, odds), 0, 2, 1, 3));
}

// K and V are written to blocks of the step's own.
void AttendRows::add_nodes(CpuLowering &lowering, int i) const {
    const std::vector<int64_t> &q = lowering.rest(lowering.input(i, 0)), &k = lowering.rest(lowering.input(i, 1));
    const auto n_kv_head = static_cast<int>(k[0]), head_dim = static_cast<int>(k[1]);
    const auto v_head_dim = static_cast<int>(lowering.rest(lowering.input(i, 2))[1]);
    const CacheLayout &layout = lowering.store().layout();
    const DType dtype = layout.types().are_coded() ? DType::f16 : layout.types().k;
    AttentionShape shape{static_cast<int>(q[0]), n_kv_head,   head_dim,       v_head_dim,  kv_type(dtype),
                         kv_type(dtype),         spec_.scale, spec_.soft_cap, spec_.window};
    shape.both_ways = true;
    auto blocks = [&](int dim) {
        const auto bytes = static_cast<int64_t>(cache_head_bytes(dtype, dim, kv_block_tokens));
        return lowering.program().block_value(n_kv_head * bytes);
    };
    const int group = static_cast<int>(layout.groups().size()); // after the cache's
    CpuValue *own_k = blocks(head_dim), *own_v = blocks(v_head_dim);
    add_attention(lowering, i,
                  {group,
                   shape,
                   {nullptr, nullptr, own_k, own_v},
                   nullptr,
                   distance_bias(spec_.bias),
                   is_related_ ? lowering.value(lowering.input(i, 3)) : nullptr,
                   is_related_ ? shape.n_head : 1});
}

} // namespace

TraceTensor attend_rows(const Heads &heads, AttendRowsSpec spec) {
    const auto &[q, k, v] = heads;
    for (const TraceTensor *x : {&q, &k, &v}) {
        expect_rank("attend_rows", "each of q, k, v", *x, 2);
        expect_tokens("attend_rows", "each of q, k, v", *x);
    }
    const int64_t n_head = q.shape().rest[0], n_kv_head = k.shape().rest[0];
    if (n_head % n_kv_head != 0 || v.shape().rest[0] != n_kv_head || q.shape().rest[1] != k.shape().rest[1])
        throw ShapeError("attend_rows", cat("q, k, v are ", shape_text(q.shape()), ", ", shape_text(k.shape()), ", ",
                                            shape_text(v.shape()), ": expected matching heads of tokens"));
    expect_positive("attend_rows", "scale", spec.scale);
    expect_not_negative("attend_rows", "soft_cap", spec.soft_cap);
    expect_not_negative("attend_rows", "window", spec.window);
    expect_bias("attend_rows", spec.bias, n_head);
    if (spec.bias && spec.bias->tensor.shape()[1] % 2 == 0)
        throw ShapeError("attend_rows", "bias has an even number of columns: expected odd");
    std::vector<TraceTensor> inputs{q, k, v};
    if (spec.related) {
        const TraceTensor &related = *spec.related;
        if (spec.bias || related.tracer->operation(related.id).kind->name() != "relate" ||
            related.shape().rest[0] != n_head)
            throw ShapeError("attend_rows", "related is not a result of relate for these heads, or there is a bias");
        inputs.push_back(related);
    }
    return q.tracer->record(std::make_shared<AttendRows>(std::move(spec)), inputs,
                            {Lead::tokens, {n_head, v.shape().rest[1]}});
}

} // namespace quire
