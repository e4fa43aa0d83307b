// From a trace to a ggml graph of fixed sizes.
#pragma once

#include <ggml.h>

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "graph/stock/attention_plan.h"
#include "graph/stock/state_plan.h"
#include "graph/trace/trace.h"
#include "kv/kv_store.h"

namespace quire {

// The sizes a graph is built for: padded numbers of tokens and of logit rows, and how each group of layers attends.
struct GraphKey {
    int n_tokens;
    int n_rows;
    int trace = 0; // which of those that share a compute buffer
    std::vector<AttentionForm> attention{};
    int n_strips = 0; // per row of logits, found on the device (graph/stock/logit_strips.h)
    StateForm states{};
    auto operator<=>(const GraphKey &) const = default;
};

// A part of what a step does in a group of layers; with the columns of a bias by distance, where there is one.
struct PartPlace {
    int group, part;
    int n_columns = 0;
    auto operator<=>(const PartPlace &) const = default;
};

// Inputs of operations with a state on a device.  Streams of all parts are numbered through.
struct StateInputs {
    static constexpr int all = -1; // parts together
    // By part: the step's rows that it has, i32 [streams * rows]; slots that streams read, i32 [streams], and write,
    // i64 [streams]; 1, or 0 of rows that are padding, f32 [streams * rows].
    std::map<int, ggml_tensor *> rows, reads, writes, masks;
    ggml_tensor *places = nullptr; // i32 [n_tokens]: where the step's rows are among those of the parts
    // For operations that look at rows before their own, numbers among all streams' kept rows, then the step's: those
    // that each row sees, the oldest first, i32 [n_tokens * n]; by how many are kept, those that are then, i32
    // [streams * n].
    std::map<SeenRows, ggml_tensor *> seen;
    std::map<int, ggml_tensor *> kept;
};

// Input tensors that step_inputs fills before each run.  Absent ones are null.
struct GraphInputs {
    ggml_tensor *tokens = nullptr; // i32 [n_tokens]
    ggml_tensor *positions = nullptr; // i32 [n_tokens]
    ggml_tensor *axes = nullptr; // i32 [4 * n_tokens]: time, height, width, time
    ggml_tensor *logit_rows = nullptr; // i32 [n_rows]
    ggml_tensor *token_types = nullptr; // i32 [n_tokens]
    ggml_tensor *features = nullptr; // f32 [n_tokens, n]
    ggml_tensor *sequences = nullptr; // i32 {2, n_tokens + 1}: see StockParts
    std::map<int, ggml_tensor *> row_masks; // by window, both ways: f32 [n_tokens, n_tokens], 0 or -inf
    std::map<int, ggml_tensor *> row_bias_columns; // by its columns, both ways: i32 [n_tokens * n_tokens]
    // For attention to cached rows, by group: the slots to write rows to, i64 [n_tokens]; and the index of each of the
    // step's rows among the rows of all parts, i32 [n_tokens].
    std::map<int, ggml_tensor *> slots, places;
    // By part: the step's rows that it has, i32 [streams * rows]; blocks, i32 [streams * blocks]; f16 [streams, 1,
    // rows, n_kv], 0 or -inf; a bias's column for each row and cached token, i32 [streams, rows, n_kv]; of the form
    // `paged` the first token that a row sees, counted from its first block, and how many, i32 [rows, 2].
    std::map<PartPlace, ggml_tensor *> rows, blocks, masks, bias_columns, spans;
    StateInputs states;
    std::vector<std::pair<ggml_tensor *, const Boundary *>> carried; // f32 [n_tokens or n_rows, ...]
    // All of them, in one piece of memory, and their bytes there.
    std::vector<ggml_tensor *> all;
    ggml_tensor *packed = nullptr;
};

struct FreeContext {
    void operator()(ggml_context *context) const { ggml_free(context); }
};

// For every row of logits the strips with the largest maxima, in no order; and the sum of all logits of the row,
// which is not a number where one is not.
struct FoundStrips {
    ggml_tensor *values = nullptr; // f32 [n_rows, strips, logit_strip]
    ggml_tensor *ids = nullptr; // i32 [n_rows, strips]
    ggml_tensor *sums = nullptr; // f32 [n_rows, 1]
};

// A graph that is ready for allocation.
struct LoweredGraph {
    GraphKey key;
    uint64_t id = 0; // only allocated graphs have one
    std::unique_ptr<ggml_context, FreeContext> context;
    ggml_cgraph *graph = nullptr;
    GraphInputs inputs;
    ggml_tensor *output = nullptr; // f32 [n_rows, n]: logits, or vectors; null where another piece has them
    FoundStrips strips{}; // null where the key has none, or the device cannot find them
    ggml_tensor *hidden = nullptr; // f32 [n_rows, n_hidden], if the trace has it
    std::vector<ggml_tensor *> taps; // f32 [n_tokens, n], as the trace has them
    std::vector<ggml_tensor *>
        left; // f32 [n_tokens or n_rows, ...], as the trace has them; null where the host wants none
    // Groups of the cache with layers that have no flash attention here, or no kernel for the form `paged`.
    std::set<int> explicit_groups, unpaged_groups;
};

// Turns a trace into graphs for one device.  Stateless between calls.
class Lowering {
  public:
    virtual ~Lowering() = default;
    virtual LoweredGraph lower(const Trace &trace, const GraphKey &key) const = 0;
};

} // namespace quire
