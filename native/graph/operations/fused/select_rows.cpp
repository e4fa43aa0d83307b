// The rows whose logits are wanted.
#include <cstring>

#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

class SelectRowsNode : public CpuNode {
  public:
    SelectRowsNode(CpuValue *x, CpuValue *out) : x_(x), out_(out) {}
    void run(const CpuRun &run) override {
        const int64_t n = x_->n_floats();
        for (int row = 0; row < run.n(Lead::rows); ++row) {
            const int64_t from = run.batch.logit_rows[static_cast<size_t>(row)];
            std::memcpy(out_->floats() + row * n, x_->floats() + from * n, static_cast<size_t>(x_->row_bytes));
        }
    }

  private:
    CpuValue *x_, *out_;
};

class SelectRows : public OperationKind {
  public:
    std::string describe() const override { return "select_rows"; }
    ggml_tensor *lower(const StockParts &p) const override {
        return ggml_get_rows(p.context, p.inputs[0], p.inputs[1]);
    }
    void add_nodes(CpuLowering &lowering, int i) const override {
        CpuValue *x = lowering.value(lowering.input(i)), *out = lowering.new_value(i);
        lowering.program().add(std::make_unique<SelectRowsNode>(x, out), {x, out});
    }
};

} // namespace

TraceTensor select_rows(const TraceTensor &x, const TraceTensor &rows) {
    expect_rank("select_rows", "x", x, 1);
    expect_rank("select_rows", "rows", rows, 0);
    if (x.shape().lead != Lead::tokens || rows.shape().lead != Lead::rows)
        throw ShapeError("select_rows", "expected x [tokens, n] and the step's logit rows");
    return x.tracer->record(std::make_shared<SelectRows>(), {x, rows}, {Lead::rows, x.shape().rest});
}

} // namespace quire
