// Products with a matrix, fused with what comes before and after them.
#pragma once

#include "graph/trace/shape_checks.h"
#include "graph/trace/trace.h"

namespace quire {

class Linear : public OperationKind {
  public:
    Linear(WeightRef weight, WeightRef bias) : weight_(std::move(weight)), bias_(std::move(bias)) {}
    std::string describe() const override;
    std::vector<WeightRef> weights() const override { return without_null({bias_}); }
    std::vector<WeightRef> matrices() const override { return {weight_}; }
    OutputStep output_step() const override { return OutputStep::product; }
    ggml_tensor *lower(const StockParts &parts) const override;
    // One node for all products of the same activations, or one for a product with the sum or the gate that it feeds.
    void add_nodes(CpuLowering &lowering, int i) const override;
    const WeightRef &weight() const { return weight_; }
    const WeightRef &bias() const { return bias_; } // may be null

  private:
    ggml_tensor *lower_product(const StockParts &parts) const;
    WeightRef weight_, bias_;
};

} // namespace quire
