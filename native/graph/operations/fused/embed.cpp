// Rows of a table by ids.
#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

class EmbedNode : public CpuNode {
  public:
    // `ids`: null where they are the step's tokens.
    EmbedNode(const Matrix *table, CpuValue *ids, CpuValue *out) : table_(table), ids_(ids), out_(out) {}
    void run(const CpuRun &run) override {
        const int64_t n = table_->n_in;
        const auto *ids = ids_ == nullptr ? run.batch.tokens.data() : reinterpret_cast<const int32_t *>(ids_->data);
        run.team.for_each(run.n(Lead::tokens), rows_together(n),
                          [&](int row) { matrix_row(*table_, ids[row], out_->floats() + row * n); });
    }

  private:
    const Matrix *table_;
    CpuValue *ids_, *out_;
};

class Embed : public OperationKind {
  public:
    explicit Embed(WeightRef weight) : weight_(std::move(weight)) {}
    std::string describe() const override { return "embed " + weight_->name; }
    std::vector<WeightRef> matrices() const override { return {weight_}; }
    const Weight *table() const override { return weight_.get(); }
    ggml_tensor *lower(const StockParts &p) const override {
        return ggml_get_rows(p.context, p.weight(weight_), p.inputs[0]);
    }
    void add_nodes(CpuLowering &lowering, int i) const override {
        const int input = lowering.input(i);
        CpuValue *out = lowering.new_value(i);
        CpuValue *ids = input == tokens_operation ? nullptr : lowering.id_value(input);
        std::vector<CpuValue *> used{out};
        if (ids != nullptr) used.push_back(ids);
        lowering.program().add(std::make_unique<EmbedNode>(lowering.matrices().find(weight_), ids, out), used);
    }

  private:
    WeightRef weight_;
};

} // namespace

TraceTensor embed(const TraceTensor &tokens, WeightRef weight) {
    expect_rank("embed", "tokens", tokens, 0);
    expect_tokens("embed", "tokens", tokens);
    const Shape &shape = weight->tensor.shape();
    if (shape.size() != 2)
        throw ShapeError("embed", cat(weight->name, " is ", to_string(shape), ": expected [n_vocab, dim]"));
    const int64_t dim = shape[1];
    return tokens.tracer->record(std::make_shared<Embed>(std::move(weight)), {tokens}, {Lead::tokens, {dim}});
}

} // namespace quire
