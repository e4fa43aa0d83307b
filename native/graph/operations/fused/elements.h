// Operations on each number by itself: those that products are fused with.
#pragma once

#include "graph/trace/trace.h"
#include "kernels/rows/row_kernels.h"

namespace quire {

class Add : public OperationKind {
  public:
    std::string describe() const override { return "add"; }
    ggml_tensor *lower(const StockParts &parts) const override;
    void add_nodes(CpuLowering &lowering, int i) const override;
};

class Glu : public OperationKind { // activation(gate) * up
  public:
    explicit Glu(Activation activation) : activation_(activation) {}
    std::string describe() const override { return "glu"; }
    ggml_tensor *lower(const StockParts &parts) const override;
    void add_nodes(CpuLowering &lowering, int i) const override;
    Activation activation() const { return activation_; }

  private:
    Activation activation_;
};

} // namespace quire
