// Operations that live in one place each: parameters, shape rule, ggml's operators and, where it pays, a kernel of our own.
//
// To add one: a file in graph/primitives/ with a class like those there and a function that checks shapes and records it;
// the function's declaration in graph/primitives.h; its line in bindings/bind_primitives.cpp and its stub; its entry in
// tests/graph/test_primitives.py, which runs every registered operation against NumPy by both ways of computing it.
#pragma once

#include <ggml.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "graph/operations.h"

namespace quire {

class CpuNode;
class KvStore;
struct CpuNodeParts;

// One row of the result from one row of each input, all of f32 (ids: i32).  Called from several threads.
using RowFunction = std::function<void(std::span<const void *const> inputs, float *out)>;

// What lowering to ggml's operators has at hand.  Shapes there are reversed: [tokens, h, d] is ne = {d, h, tokens}.
struct StockParts {
    ggml_context *context;
    std::vector<ggml_tensor *> inputs;
    const TraceShape &shape; // of the result
    int64_t lead; // rows of the result
    // For operations that have a state of each sequence; else null.
    const KvStore *store = nullptr;
    ggml_tensor *sequences = nullptr; // i32 {2, n}: first row and state of each; then others of no rows
    ggml_tensor *weight(const WeightRef &w) const { return w->tensor.handle(); }
};

class Primitive {
  public:
    virtual ~Primitive() = default;
    virtual std::string describe() const = 0;
    std::string name() const { // without parameters
        const std::string text = describe();
        return text.substr(0, text.find(' '));
    }
    virtual std::vector<WeightRef> weights() const { return {}; }
    // How many tensors of ggml it takes at most.
    virtual size_t n_tensors() const { return 12; }
    virtual bool has_state() const { return false; }
    virtual ggml_tensor *lower(const StockParts &parts) const = 0;
    // Our own kernel, for rows that do not depend on each other; none: ggml's operators run inside the program.
    virtual RowFunction row_function() const { return {}; }
    // Or a node of its own, where rows do depend on each other; null: there is none.
    virtual std::unique_ptr<CpuNode> cpu_node(const CpuNodeParts &) const;
};

} // namespace quire
