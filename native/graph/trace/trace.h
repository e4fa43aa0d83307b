// What a trace consists of: operations, each of a kind that says what is computed and how either lowering makes it.
//
// A kind lives in one file: parameters, shape rule, ggml's operators, and what it is on the CPU.  Those that our own
// program fuses with others, or that read the cache, are in graph/operations/ and recorded by graph/trace/fused_operations.h; all others are
// standalone operations (graph/operations/standalone_operation.h).
#pragma once

#include <ggml.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "kv/cache_spec.h"

namespace quire {

// A named tensor of the model file on the model's device.  Immutable.
struct Weight {
    std::string name;
    Tensor tensor;
};
using WeightRef = std::shared_ptr<const Weight>;

enum class Lead { tokens, rows }; // the leading dimension: every row of the step, or those whose logits are wanted

struct TraceShape {
    Lead lead;
    std::vector<int64_t> rest; // the dimensions after it; empty for tokens, positions, rows
    bool operator==(const TraceShape &) const = default;
};

class CpuLowering;
struct StockParts;

// Parameters of an operation and what is done with them.  Immutable.
class OperationKind {
  public:
    virtual ~OperationKind() = default;
    virtual std::string describe() const = 0;
    std::string name() const { // without parameters
        const std::string text = describe();
        return text.substr(0, text.find(' '));
    }
    // Weights that must stay as the file holds them, and matrices of products and tables, which may be packed.
    virtual std::vector<WeightRef> weights() const { return {}; }
    virtual std::vector<WeightRef> matrices() const { return {}; }
    // The table whose rows the first input's ids name, or null.
    virtual const Weight *table() const { return nullptr; }
    // The state of each sequence that it reads and updates.
    virtual std::optional<StatePlace> state() const { return std::nullopt; }
    bool has_state() const { return state().has_value(); }
    // Whether ggml has operators for it on that device.  Asked of what has a state; of the rest, graphs are.
    virtual bool runs_on(Device) const { return true; }
    // Rows of a sequence attend to each other both ways.
    virtual bool attends_both_ways() const { return false; }
    // The layer whose cached rows are attended to; -1: none.
    virtual int attended_layer() const { return -1; }
    // The layer whose cached rows are written or read; -1: none.
    virtual int cached_layer() const { return attended_layer(); }
    // What the matrix of an output reads is the trace's hidden state: the product's input, or that of what follows it.
    enum class OutputStep { product, follows_product, other };
    virtual OutputStep output_step() const { return OutputStep::other; }
    // ggml's operators, and how many tensors they take at most.
    virtual ggml_tensor *lower(const StockParts &parts) const = 0;
    virtual size_t n_tensors() const { return 4; }
    // Nodes of the program on the CPU for operation `i`.  `prepare` comes first, for all operations, in their order.
    virtual void prepare(CpuLowering &, int) const {}
    virtual void add_nodes(CpuLowering &lowering, int i) const = 0;
};

// The first operations of every trace are what a step brings: its ids, their positions, the rows that are wanted, and of
// which text of a pair each token is.
inline constexpr int tokens_operation = 0, positions_operation = 1, logit_rows_operation = 2, token_types_operation = 3;

struct Operation {
    std::shared_ptr<const OperationKind> kind;
    std::vector<int> inputs; // numbers of earlier operations
    TraceShape shape; // of the result

    template <class Kind> const Kind *as() const { return dynamic_cast<const Kind *>(kind.get()); }
};

// What a forward pass ends with: logits, or vectors (of embeddings, or scores of classes).
enum class OutputKind { logits, vectors };

// The hidden state after a layer, which a step leaves for all of its rows.
struct Tap {
    int layer, operation; // operation: [tokens, n]
};
// In place of a layer: the features, what a head that predicts later tokens reads of each row.
inline constexpr int features_tap = std::numeric_limits<int>::max();

struct Boundary; // graph/trace/boundary.h

// A value that a trace, which is a piece of another, leaves for the next pieces.
struct Left {
    int operation;
    std::shared_ptr<Boundary> boundary;
};

// A finished forward pass.  Invariants: inputs refer to earlier operations; every layer of `cache` that keeps rows is
// written once, rows of a source text by `encoder`, a pass of its own with the same cache; the output is [rows, n].
struct Trace {
    std::vector<CacheSpec> cache;
    std::vector<Operation> operations;
    int output;
    OutputKind kind;
    int64_t n_vocab; // of the logits, or else of the ids that the model reads
    // [rows, n]: the output where it is vectors, else what the matrix of the output reads; -1 where it is no product
    int hidden = -1;
    std::vector<Tap> taps = {}; // by layer, ascending
    std::shared_ptr<const Trace> encoder = nullptr; // of source texts, for models that read one
    std::vector<Left> left = {};
    int64_t n_features_read = 0; // numbers of a row that come with its token; 0: none do
    int64_t n_hidden() const { return hidden < 0 ? 0 : operations[static_cast<size_t>(hidden)].shape.rest[0]; }
    int64_t n_output() const { return operations[static_cast<size_t>(output)].shape.rest[0]; }
    bool attends_both_ways() const;
    bool reads_token_types() const;
};

std::string describe(const Operation &operation);

// By operation, those that read it; -1: the caller, or a later piece.  `users_of` leaves the hidden state out, which programs on
// the CPU show beside what they compute.
std::vector<std::vector<int>> users_of(const Trace &trace);
std::vector<std::vector<int>> readers_of(const Trace &trace);

} // namespace quire
