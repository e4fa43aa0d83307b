#include "graph/trace/step_values.h"

#include <cstring>

#include "graph/cpu/cpu_lowering.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

class StepValue : public OperationKind {
  public:
    StepValue(const char *name, ggml_tensor *GraphInputs::*place) : name_(name), place_(place) {}
    std::string describe() const override { return name_; }
    ggml_tensor *lower(const StockParts &p) const override {
        return p.graph->out.inputs.*place_ = p.graph->new_input(GGML_TYPE_I32, {p.lead}, name_);
    }
    void add_nodes(CpuLowering &, int) const override {} // nodes read the batch

  private:
    const char *name_;
    ggml_tensor *GraphInputs::*place_;
};

class FeaturesNode : public CpuNode {
  public:
    explicit FeaturesNode(CpuValue *out) : out_(out) {}
    void run(const CpuRun &run) override {
        const int64_t n = out_->n_floats();
        run.team.for_each(run.n(Lead::tokens), rows_together(n), [&](int row) {
            std::memcpy(out_->floats() + row * n, run.batch.features.data() + row * n,
                        static_cast<size_t>(out_->row_bytes));
        });
    }

  private:
    CpuValue *out_;
};

class Features : public OperationKind {
  public:
    std::string describe() const override { return "features"; }
    ggml_tensor *lower(const StockParts &p) const override {
        return p.graph->out.inputs.features =
                   p.graph->new_input(GGML_TYPE_F32, {row_size(p.shape), p.lead}, "features");
    }
    void add_nodes(CpuLowering &lowering, int i) const override {
        CpuValue *out = lowering.new_value(i);
        lowering.program().add(std::make_unique<FeaturesNode>(out), {out});
    }
};

} // namespace

std::shared_ptr<const OperationKind> step_features() { return std::make_shared<Features>(); }
std::shared_ptr<const OperationKind> step_tokens() {
    return std::make_shared<StepValue>("tokens", &GraphInputs::tokens);
}
std::shared_ptr<const OperationKind> step_positions() {
    return std::make_shared<StepValue>("positions", &GraphInputs::positions);
}
std::shared_ptr<const OperationKind> step_logit_rows() {
    return std::make_shared<StepValue>("logit_rows", &GraphInputs::logit_rows);
}
std::shared_ptr<const OperationKind> step_token_types() {
    return std::make_shared<StepValue>("token_types", &GraphInputs::token_types);
}

} // namespace quire
