// A trace consists of operations, each of a kind that knows its shape rule and how both lowerings compute it.
//
// A kind lives in one file: parameters, shape rule, ggml's operators and its CPU nodes.  Fused operations, which see
// the whole trace, are recorded by trace/fused_operations.h; standalone ones, which see their own inputs only, by
// trace/standalone_operations.h.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <limits>
#include <map>
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

enum class Lead { tokens, rows }; // the leading dimension: every row of the step, or those whose logits are needed

struct TraceShape {
    Lead lead;
    std::vector<int64_t> rest; // the dimensions after it; empty for tokens, positions, rows
    bool operator==(const TraceShape &) const = default;
};

class CpuLowering;
struct StockParts;

// Parameters of an operation, and its two lowerings.  Immutable.
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
    // The table that is indexed by the first input, or null.
    virtual const Weight *table() const { return nullptr; }
    // The state of each sequence that it reads and updates.
    virtual std::optional<StatePlace> state() const { return std::nullopt; }
    bool has_state() const { return state().has_value(); }
    // True if the device can run it.  Operations with state and compressed attention know; graphs are asked about the
    // rest.
    virtual bool runs_on(Device) const { return true; }
    // Rows of a sequence attend to each other both ways.
    virtual bool attends_both_ways() const { return false; }
    // The layer whose cached rows are attended to; -1: none.
    virtual int attended_layer() const { return -1; }
    // The layers whose cached rows are written or read.
    virtual std::vector<int> cached_layers() const {
        return attended_layer() < 0 ? std::vector<int>{} : std::vector{attended_layer()};
    }
    // The trace's hidden state is the input of the output matrix: the product's, or that of an operation that follows
    // it.
    enum class OutputStep { product, follows_product, other };
    virtual OutputStep output_step() const { return OutputStep::other; }
    // ggml's operators, and how many tensors they take at most.
    virtual ggml_tensor *lower(const StockParts &parts) const = 0;
    virtual size_t n_tensors() const { return 4; }
    // Nodes of the program on the CPU for operation `i`.  `prepare` comes first, for all operations, in their order.
    virtual void prepare(CpuLowering &, int) const {}
    virtual void add_nodes(CpuLowering &lowering, int i) const = 0;
};

// The first operations of every trace are the inputs of a step: ids, positions, the rows whose logits are needed, and
// which text of a pair each token belongs to.
inline constexpr int tokens_operation = 0, positions_operation = 1, logit_rows_operation = 2, token_types_operation = 3;

struct Operation {
    std::shared_ptr<const OperationKind> kind;
    std::vector<int> inputs; // numbers of earlier operations
    TraceShape shape; // the result's

    template <class Kind> const Kind *as() const { return dynamic_cast<const Kind *>(kind.get()); }
};

// The result of a forward pass: logits, or vectors (of embeddings, or scores of classes).
enum class OutputKind { logits, vectors };

// The hidden state after a layer, which a step leaves for all of its rows.
struct Tap {
    int layer, operation; // operation: [tokens, n]
};
// In place of a layer: the features, which a head that predicts later tokens reads for each row.
inline constexpr int features_tap = std::numeric_limits<int>::max();

struct Boundary; // graph/trace/boundary.h

// A value that a piece of a trace leaves for later pieces.
struct Left {
    int operation;
    std::shared_ptr<Boundary> boundary;
};

// The stages of a pipeline that run a trace's operations, by their weights' names (run/placement.h).
class RankGroup;
struct Stages {
    std::shared_ptr<RankGroup> group;
    std::map<std::string, int> of_weights;
};

// A finished forward pass.  Invariants: inputs refer to earlier operations; every layer of `cache` that keeps rows is
// written once, rows of a source text by `encoder`, a pass of its own with the same cache; the output is [rows, n].
struct Trace {
    std::vector<CacheSpec> cache;
    std::vector<Operation> operations;
    int output;
    OutputKind kind;
    int64_t n_vocab; // columns of logits, or else of the ids that the model reads
    // [rows, n]: the output if it is vectors, else the input of the output matrix; -1 if the output is no product
    int hidden = -1;
    std::vector<Tap> taps = {}; // by layer, ascending
    std::shared_ptr<const Trace> encoder = nullptr; // for source texts, if the model reads one
    std::vector<Left> left = {};
    std::shared_ptr<const Stages> stages = nullptr; // null: one process runs all of it
    int64_t n_features_read = 0; // numbers of a row that come with its token; 0: none do
    int64_t n_hidden() const { return hidden < 0 ? 0 : operations[static_cast<size_t>(hidden)].shape.rest[0]; }
    int64_t n_output() const { return operations[static_cast<size_t>(output)].shape.rest[0]; }
    bool attends_both_ways() const;
    bool reads_token_types() const;
};

std::string describe(const Operation &operation);

// Readers of each operation; -1: the caller, or a later piece.  `users_of` leaves out the hidden state, which CPU
// programs compute separately.
std::vector<std::vector<int>> users_of(const Trace &trace);
std::vector<std::vector<int>> readers_of(const Trace &trace);

} // namespace quire
