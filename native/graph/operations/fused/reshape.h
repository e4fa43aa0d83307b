// Rows seen in other dimensions.
#pragma once

#include "graph/trace/trace.h"

namespace quire {

class Reshape : public OperationKind {
  public:
    std::string describe() const override { return "reshape"; }
    ggml_tensor *lower(const StockParts &parts) const override;
    void add_nodes(CpuLowering &lowering, int i) const override;
};

} // namespace quire
