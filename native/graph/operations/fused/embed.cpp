// Rows of a table by ids.
#include "graph/operations/fused/embed.h"

#include <array>

#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/operations/fused/adapted_products.h"
#include "graph/stock/adapter_products.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

class EmbedNode : public CpuNode {
  public:
    // `ids`: null where they are the step's tokens.
    EmbedNode(const Weight *weight, const Matrix *table, CpuValue *ids, CpuValue *out)
        : weight_(weight), table_(table), ids_(ids), out_(out) {}
    void run(const CpuRun &run) override {
        const int64_t n = table_->n_in;
        const auto *ids = ids_ == nullptr ? run.batch.tokens.data() : reinterpret_cast<const int32_t *>(ids_->data);
        run.team.for_each(run.n(Lead::tokens), rows_together(n),
                          [&](int row) { matrix_row(*table_, ids[row], out_->floats() + row * n); });
        if (ids_ != nullptr) return;
        const std::array products{AdaptedProduct{weight_, nullptr, nullptr, out_->floats(), ids}};
        const AdapterSums sums(run, Lead::tokens, products);
        run.team.for_each(sums.n_items(), 1, [&](int item) { sums.multiply_by_a(item); });
        sums.add();
    }

  private:
    const Weight *weight_;
    const Matrix *table_;
    CpuValue *ids_, *out_;
};

} // namespace

ggml_tensor *Embed::lower(const StockParts &p) const {
    return with_table_adapters(p, weight_.get(), p.inputs[0], ggml_get_rows(p.context, p.weight(weight_), p.inputs[0]));
}

void Embed::add_nodes(CpuLowering &lowering, int i) const {
    const int input = lowering.input(i);
    CpuValue *out = lowering.new_value(i);
    CpuValue *ids = input == tokens_operation ? nullptr : lowering.id_value(input);
    std::vector<CpuValue *> used{out};
    if (ids != nullptr) used.push_back(ids);
    const Matrix *table = lowering.matrices().find(weight_);
    lowering.program().add(std::make_unique<EmbedNode>(weight_.get(), table, ids, out), used);
}

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
