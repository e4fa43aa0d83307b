// Scores by distance that depend on both tokens (DeBERTa, He et al. 2021): each row has a number for every distance, and
// so has each token; both are added.
#include <algorithm>

#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

// Inputs: by_row, by_token.
class Relate : public OperationKind {
  public:
    explicit Relate(RelateSpec spec) : spec_(std::move(spec)) {}
    std::string describe() const override { return "relate"; }
    size_t n_tensors() const override { return 24; }
    bool attends_both_ways() const override { return true; }
    ggml_tensor *lower(const StockParts &parts) const override;
    void add_nodes(CpuLowering &lowering, int i) const override;

  private:
    RelateSpec spec_;
};

// {n_tokens, n_tokens, n_head}: of each token, for each row.
ggml_tensor *Relate::lower(const StockParts &p) const {
    ggml_context *ctx = p.context;
    StockGraph &graph = *p.graph;
    const int64_t n = graph.out.key.n_tokens;
    auto input = [&](std::map<const std::vector<int32_t> *, ggml_tensor *> &inputs) {
        return graph.shared_input(inputs, &spec_.buckets,
                                  [&] { return graph.new_input(GGML_TYPE_I32, {n, n}, "buckets"); });
    };
    auto picked = [&](ggml_tensor *x, ggml_tensor *buckets) { // {n_head, n, n_tokens}
        return ggml_get_rows(ctx, ggml_cont(ctx, ggml_permute(ctx, x, 1, 0, 2, 3)), buckets);
    };
    ggml_tensor *of_row = picked(p.inputs[0], input(graph.out.inputs.row_buckets));
    ggml_tensor *of_token = picked(p.inputs[1], input(graph.out.inputs.token_buckets));
    return ggml_add(ctx, ggml_cont(ctx, ggml_permute(ctx, of_row, 2, 0, 1, 3)),
                    ggml_cont(ctx, ggml_permute(ctx, of_token, 2, 1, 0, 3)));
}

class RelateNode : public CpuNode {
  public:
    struct Values {
        CpuValue *by_row, *by_token, *out;
    };
    RelateNode(int group, const std::vector<int32_t> &buckets, int64_t n_head, Values values)
        : group_(static_cast<size_t>(group)), buckets_(buckets), n_head_(n_head), values_(values) {}
    void run(const CpuRun &run) override;

  private:
    size_t group_;
    const std::vector<int32_t> &buckets_;
    int64_t n_head_;
    Values values_;
};

void RelateNode::run(const CpuRun &run) {
    const AttentionBatch &batch = run.groups[group_];
    const int64_t row_floats = values_.by_row->n_floats(), n = row_floats / n_head_;
    const int64_t n_ctx = values_.out->n_floats() / n_head_;
    const auto middle = static_cast<int32_t>(buckets_.size() / 2);
    for (int32_t s = 0; s < batch.n_sequences; ++s) {
        const int32_t begin = batch.row_begin[s], n_rows = batch.row_begin[s + 1] - begin;
        run.team.for_each(n_rows, 1, [&](int row) {
            const float *own = values_.by_row->floats() + (begin + row) * row_floats;
            float *out = values_.out->floats() + (begin + row) * n_head_ * n_ctx;
            for (int32_t t = 0; t < n_rows; ++t) {
                const int32_t bucket = buckets_[static_cast<size_t>(std::clamp(middle + t - row, 0, 2 * middle))];
                const float *other = values_.by_token->floats() + (begin + t) * row_floats + bucket;
                for (int64_t h = 0; h < n_head_; ++h) out[h * n_ctx + t] = own[h * n + bucket] + other[h * n];
            }
        });
    }
}

void Relate::add_nodes(CpuLowering &lowering, int i) const {
    const auto group = static_cast<int>(lowering.store().layout().groups().size()); // after the cache's
    const RelateNode::Values values{lowering.value(lowering.input(i, 0)), lowering.value(lowering.input(i, 1)),
                                    lowering.new_value(i)};
    lowering.program().add(
        std::make_unique<RelateNode>(group, spec_.buckets, lowering.rest(lowering.input(i))[0], values),
        {values.by_row, values.by_token, values.out});
}

} // namespace

TraceTensor relate(const TraceTensor &by_row, const TraceTensor &by_token, RelateSpec spec) {
    for (const TraceTensor *x : {&by_row, &by_token}) {
        expect_rank("relate", "each of by_row, by_token", *x, 2);
        expect_tokens("relate", "each of by_row, by_token", *x);
    }
    const std::vector<int64_t> &rest = by_row.shape().rest;
    if (by_token.shape().rest != rest)
        throw ShapeError("relate", cat("by_row, by_token are ", shape_text(by_row.shape()), ", ",
                                       shape_text(by_token.shape()), ": expected one shape"));
    if (spec.buckets.size() % 2 == 0 || spec.n_ctx < 1)
        throw ShapeError("relate", cat(spec.buckets.size(), " buckets, n_ctx ", spec.n_ctx,
                                       ": expected an odd number and 1 or more"));
    for (int32_t bucket : spec.buckets)
        if (bucket < 0 || bucket >= rest[1])
            throw ShapeError("relate", cat("bucket ", bucket, " is out of range: expected less than ", rest[1]));
    const int64_t n_ctx = spec.n_ctx;
    return by_row.tracer->record(std::make_shared<Relate>(std::move(spec)), {by_row, by_token},
                                 {Lead::tokens, {rest[0], n_ctx}});
}

} // namespace quire
