// Operations that see their own inputs only: parameters, shape rule, ggml's operators and optionally a kernel.
// README.md in native/graph lists the steps to add one.
#pragma once

#include <memory>
#include <vector>

#include "graph/cpu/standalone_nodes.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/tracer.h"

namespace quire {

class StandaloneOperation : public OperationKind {
  public:
    size_t n_tensors() const override { return 12; }
    // Our own kernel, for rows that do not depend on each other; none: ggml's operators run inside the program.
    virtual RowFunction row_function() const { return {}; }
    // Or a node of its own, where rows do depend on each other; null: there is none.
    virtual std::unique_ptr<CpuNode> cpu_node(const CpuNodeParts &) const;
    void add_nodes(CpuLowering &lowering, int i) const final;
};

// Records an operation; the functions of trace/standalone_operations.h check shapes and call it.
TraceTensor record_standalone(std::shared_ptr<const StandaloneOperation> operation,
                              const std::vector<TraceTensor> &inputs, TraceShape shape);

} // namespace quire
