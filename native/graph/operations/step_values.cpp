#include "graph/operations/step_values.h"

#include "graph/lower_stock.h"
#include "graph/stock_parts.h"

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

} // namespace

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
