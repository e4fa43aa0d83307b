// From a trace to a ggml graph of fixed sizes.
#pragma once

#include <ggml.h>

#include <map>
#include <memory>
#include <vector>

#include "graph/operations.h"
#include "kv/kv_store.h"

namespace quire {

// The sizes a graph is built for: padded numbers of tokens, of logit rows and of cached tokens.
struct GraphKey {
    int n_tokens;
    int n_rows;
    int n_kv;
    auto operator<=>(const GraphKey &) const = default;
};

// Layers that agree here read the same rows of their arrays.
struct GroupHeads {
    int group, n_kv_head;
    auto operator<=>(const GroupHeads &) const = default;
};

// Input tensors that step_inputs fills before each run.  Absent ones are null.
struct GraphInputs {
    ggml_tensor *tokens = nullptr;     // i32 [n_tokens]
    ggml_tensor *positions = nullptr;  // i32 [n_tokens]
    ggml_tensor *axes = nullptr;       // i32 [4 * n_tokens]: time, height, width, time
    ggml_tensor *logit_rows = nullptr; // i32 [n_rows]
    // Rows of the store seen as [n_blocks * n_kv_head * block_tokens, head_dim].
    std::map<GroupHeads, ggml_tensor *> write_rows; // i64 [n_tokens * n_kv_head], head fastest
    std::map<GroupHeads, ggml_tensor *> gather_rows; // i32 [n_kv_head * n_kv], cached token fastest
    std::map<int, ggml_tensor *> row_masks; // by window, both ways: f32 [n_tokens, n_tokens], 0 or -inf
    // By the columns of a bias by distance, of attention to the cache and both ways: its column for each cached token and row.
    std::map<int, ggml_tensor *> bias_columns; // i32 [n_tokens * n_kv], cached token fastest
    std::map<int, ggml_tensor *> row_bias_columns; // i32 [n_tokens * n_tokens]
    ggml_tensor *sequences = nullptr; // i32 {2, n_tokens + 1}: see StockParts
    std::map<CacheLifetime, ggml_tensor *> masks; // f32 [n_tokens, n_kv], 0 or -inf
};

struct FreeContext {
    void operator()(ggml_context *context) const { ggml_free(context); }
};

// A graph that is ready for allocation.
struct LoweredGraph {
    GraphKey key;
    std::unique_ptr<ggml_context, FreeContext> context;
    ggml_cgraph *graph = nullptr;
    GraphInputs inputs;
    ggml_tensor *output = nullptr; // f32 [n_rows, n]: logits, or vectors
    ggml_tensor *hidden = nullptr; // f32 [n_rows, n_hidden], if the trace has it
    std::vector<ggml_tensor *> taps; // f32 [n_tokens, n], as the trace has them
};

// Turns a trace into graphs for one device.  Stateless between calls.
class Lowering {
  public:
    virtual ~Lowering() = default;
    virtual LoweredGraph lower(const Trace &trace, GraphKey key) const = 0;
};

} // namespace quire
