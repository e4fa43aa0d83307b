// Rows of a table by ids.
#pragma once

#include "graph/trace/fused_operations.h"

namespace quire {

class Embed : public OperationKind {
  public:
    explicit Embed(WeightRef weight) : weight_(std::move(weight)) {}
    std::string describe() const override { return "embed " + weight_->name; }
    std::vector<WeightRef> matrices() const override { return {weight_}; }
    const Weight *table() const override { return weight_.get(); }
    const WeightRef &weight() const { return weight_; }
    ggml_tensor *lower(const StockParts &parts) const override;
    size_t n_tensors() const override { return 4; }
    void add_nodes(CpuLowering &lowering, int i) const override;

  private:
    WeightRef weight_;
};

} // namespace quire
