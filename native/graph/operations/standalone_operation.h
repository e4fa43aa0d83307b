// Operations that live in one place each: parameters, shape rule, ggml's operators and, where it pays, a kernel of our own.
//
// To add one: a file in graph/operations/standalone/ with a class like those there and a function that checks shapes and records it;
// the function's declaration in graph/trace/standalone_operations.h; its line in bindings/bind_standalone_operations.cpp and its stub; its entry in
// tests/graph/test_standalone_operations.py, which runs every registered operation against NumPy by both ways of computing it.
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

// Of graph/trace/standalone_operations.h, whose functions check the shapes.
TraceTensor record_standalone(std::shared_ptr<const StandaloneOperation> operation,
                              const std::vector<TraceTensor> &inputs, TraceShape shape);

} // namespace quire
