// Operations that live in one place each: parameters, shape rule, ggml's operators and, where it pays, a kernel of our own.
//
// To add one: a file in graph/primitives/ with a class like those there and a function that checks shapes and records it;
// the function's declaration in graph/primitives.h; its line in bindings/bind_primitives.cpp and its stub; its entry in
// tests/graph/test_primitives.py, which runs every registered operation against NumPy by both ways of computing it.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "graph/operations.h"
#include "graph/stock_parts.h"

namespace quire {

class CpuNode;
struct CpuNodeParts;

// One row of the result from one row of each input, all of f32 (ids: i32).  Called from several threads.
using RowFunction = std::function<void(std::span<const void *const> inputs, float *out)>;

class Primitive : public OperationKind {
  public:
    size_t n_tensors() const override { return 12; }
    // Our own kernel, for rows that do not depend on each other; none: ggml's operators run inside the program.
    virtual RowFunction row_function() const { return {}; }
    // Or a node of its own, where rows do depend on each other; null: there is none.
    virtual std::unique_ptr<CpuNode> cpu_node(const CpuNodeParts &) const;
    void add_nodes(CpuLowering &lowering, int i) const final;
};

} // namespace quire
