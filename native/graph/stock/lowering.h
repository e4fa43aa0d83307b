// Interface between traces and ggml graphs, which have fixed sizes.
#pragma once

#include <ggml.h>

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "graph/stock/attention_plan.h"
#include "graph/stock/state_plan.h"
#include "graph/trace/step_batch.h"
#include "graph/trace/trace.h"
#include "kv/kv_store.h"

namespace quire {

// The sizes a graph is built for: padded numbers of tokens and of logit rows, and how each group of layers attends.
struct GraphKey {
    int n_tokens;
    int n_rows;
    int trace = 0; // its number among the traces that share a compute buffer
    std::vector<AttentionForm> attention{};
    int n_strips = 0; // per row of logits, found on the device (graph/stock/logit_strips.h)
    StateForm states{};
    int n_adapters = 0; // that a row has at most
    auto operator<=>(const GraphKey &) const = default;
};

// One part of the attention in a group of layers; `columns` only for a bias by distance.
struct PartPlace {
    int group, part;
    int n_columns = 0;
    auto operator<=>(const PartPlace &) const = default;
};

// Inputs of operations with a state, on a device.  Streams are numbered across parts.
struct StateInputs {
    static constexpr int all = -1; // all parts
    // By part: its rows of the step, i32 [streams * rows]; the slots that streams read, i32 [streams], and write,
    // i64 [streams]; a mask, f32 [streams * rows], 1 for rows and 0 for padding.
    std::map<int, ggml_tensor *> rows, reads, writes, masks;
    ggml_tensor *places = nullptr; // i32 [n_tokens]: the index of each of the step's rows among those of the parts
    // For operations that read earlier rows.  Indices count the kept rows of all streams, then the rows of the step: the
    // rows that each row sees, oldest first, i32 [n_tokens * n]; and, by the number of rows to keep, those that are kept
    // afterwards, i32 [streams * n].
    std::map<SeenRows, ggml_tensor *> seen;
    std::map<int, ggml_tensor *> kept;
};

// One adapter of each row: the first of all rows that have one, or the second and so on.
struct AdapterPlace {
    Lead lead;
    int level;
    auto operator<=>(const AdapterPlace &) const = default;
};
struct AdapterInput {
    // i32 [n], f32 [n, 1, 1]: where the row's adapter is (graph/stock/device_adapters.h), and its scale.
    ggml_tensor *slots = nullptr, *scales = nullptr;
    // By the rows of a table: i32 [n], the row's token in the tables of all slots, which lie one after the other.
    std::map<int64_t, ggml_tensor *> table_rows = {};
};

// Input tensors, filled by step_inputs before each run; null if absent.
struct GraphInputs {
    ggml_tensor *tokens = nullptr; // i32 [n_tokens]
    ggml_tensor *positions = nullptr; // i32 [n_tokens]
    ggml_tensor *axes = nullptr; // i32 [4 * n_tokens]: time, height, width, time
    ggml_tensor *logit_rows = nullptr; // i32 [n_rows]
    ggml_tensor *token_types = nullptr; // i32 [n_tokens]
    ggml_tensor *features = nullptr; // f32 [n_tokens, n]
    ggml_tensor *sequences = nullptr; // i32 {2, n_tokens + 1}: see StockParts
    std::map<int, ggml_tensor *> row_masks; // by window, bidirectional: f32 [n_tokens, n_tokens], 0 or -inf
    // Buckets of distances (relate), i32 [n_tokens, n_tokens]: of each token for a row, of each row for a token.
    std::map<const std::vector<int32_t> *, ggml_tensor *> row_buckets, token_buckets;
    std::map<int, ggml_tensor *> row_bias_columns; // by its columns, bidirectional: i32 [n_tokens * n_tokens]
    // For attention to cached rows, by group: the slots where rows are written, i64 [n_tokens]; and the index of each of
    // the step's rows among the rows of all parts, i32 [n_tokens].
    std::map<int, ggml_tensor *> slots, places;
    // By part: its rows of the step, i32 [streams * rows]; blocks, i32 [streams * blocks]; a mask, f16 [streams, 1,
    // rows, n_kv], 0 or -inf; the bias's column of each row and cached token, i32 [streams, rows, n_kv]; and for Quire's
    // kernels the first token that a row sees, counted from its first block, and their number, i32 [rows, 2].
    std::map<PartPlace, ggml_tensor *> rows, blocks, masks, bias_columns, spans;
    StateInputs states;
    std::map<AdapterPlace, AdapterInput> adapters;
    std::vector<std::pair<ggml_tensor *, const Boundary *>> carried; // f32 [n_tokens or n_rows, ...]
    // All inputs, in one buffer, and their size there.
    std::vector<ggml_tensor *> all;
    ggml_tensor *packed = nullptr;
};

struct FreeContext {
    void operator()(ggml_context *context) const { ggml_free(context); }
};

// The strips with the largest maxima of every row of logits, in no order; and the sum of the row, which is NaN if any
// logit is.
struct FoundStrips {
    ggml_tensor *values = nullptr; // f32 [n_rows, strips, logit_strip]
    ggml_tensor *ids = nullptr; // i32 [n_rows, strips]
    ggml_tensor *sums = nullptr; // f32 [n_rows, 1]
};

// A graph that is ready for allocation.
struct LoweredGraph {
    GraphKey key;
    uint64_t id = 0; // 0 until it is allocated
    std::unique_ptr<ggml_context, FreeContext> context;
    ggml_cgraph *graph = nullptr;
    GraphInputs inputs;
    ggml_tensor *output = nullptr; // f32 [n_rows, n]: logits or vectors; null if another piece has them
    FoundStrips strips{}; // null if the key has none, or the device cannot find them
    ggml_tensor *hidden = nullptr; // f32 [n_rows, n_hidden], if the trace has it
    std::vector<ggml_tensor *> taps; // f32 [n_tokens, n], as in the trace
    std::vector<ggml_tensor *>
        left; // f32 [n_tokens or n_rows, ...], as in the trace; null if the host does not need it
    // The step that the graph runs, and what nodes on the CPU refer to (graph/operations/fused/paged_rows.h).
    std::shared_ptr<const StepBatch *> batch = std::make_shared<const StepBatch *>(nullptr);
    std::vector<std::shared_ptr<const void>> kept;
    // Groups of the cache with layers without flash attention here, or without a kernel for the form `paged`.
    std::set<int> explicit_groups, unpaged_groups;
    std::set<int> copied_groups; // their blocks are copied in the form `sequence`
};

// Turns a trace into graphs for one device.  Stateless between calls.
class Lowering {
  public:
    virtual ~Lowering() = default;
    virtual LoweredGraph lower(const Trace &trace, const GraphKey &key) const = 0;
};

} // namespace quire
