// Root mean square norm (Zhang and Sennrich 2019), over the last dimension.
#pragma once

#include "graph/cpu/row_norm.h"
#include "graph/trace/shape_checks.h"

namespace quire {

class RmsNorm : public OperationKind {
  public:
    RmsNorm(WeightRef weight, float eps) : weight_(std::move(weight)), eps_(eps) {}
    std::string describe() const override;
    std::vector<WeightRef> weights() const override { return without_null({weight_}); }
    ggml_tensor *lower(const StockParts &parts) const override;
    // Left to the products that read it, or to the attention whose heads it norms.
    void add_nodes(CpuLowering &lowering, int i) const override;
    RowNorm over(int64_t n) const;

  private:
    WeightRef weight_; // may be null
    float eps_;
};

} // namespace quire
