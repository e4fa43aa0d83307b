// Rotations of heads by their position (Su et al. 2021), scaled as in Peng et al. 2023 (YaRN) where ext_factor is not
// zero.
#pragma once

#include "graph/operations/fused/heads.h"

namespace quire {

class Rope : public OperationKind {
  public:
    explicit Rope(RopeSpec spec) : spec_(std::move(spec)) {}
    std::string describe() const override;
    ggml_tensor *lower(const StockParts &parts) const override;
    // Left to attention where it begins with it.
    void add_nodes(CpuLowering &lowering, int i) const override;
    Rotation rotation(CpuLowering &lowering) const; // with its table, one for all layers that rotate alike

  private:
    RopeSpec spec_;
};

} // namespace quire
