// How the rows of a step meet the cached rows, in graphs of ggml's operators.
//
// Attention there is of *streams*: a stream is some rows of the step that look at the same cached rows.  Of each
// group of layers a step's rows make one or two parts, each of streams of equal size, in one of three forms:
//   pool      all rows look at a stretch of the pool, where it lies: nothing is copied, and what sequences share is read
//             once.  Order does not matter to attention, so that a mask says what is whose.
//   live      all rows look at copies of the blocks that any of them sees, each once;
//   sequence  a stream holds rows of one sequence and looks at copies of the blocks that those see;
//   paged     each row is a stream that follows its sequence's table, by a kernel of our own where the device has one:
//             nothing is copied, nothing is masked, and only what a row sees is read.
// What a form costs depends on the step, so it is chosen for each (attention_plan.cpp).
#pragma once

#include <compare>
#include <vector>

#include "graph/trace/step_batch.h"
#include "graph/trace/trace.h"

namespace quire {

class KvStore;

enum class CachedRows { pool, live, sequence, paged };

// Streams of one size.  Blocks that hold less than n_kv tokens are padded with the null block, rows with hidden ones.
struct AttentionPart {
    CachedRows source;
    int n_streams, stream_rows;
    int n_kv; // cached tokens that each stream looks at
    int first_kv = 0; // for a stretch of the pool: tokens before it
    int n_rows() const { return n_streams * stream_rows; }
    auto operator<=>(const AttentionPart &) const = default;
};

struct AttentionForm {
    std::vector<AttentionPart> parts; // one after the other they hold each row of the step once; none: no layer attends
    bool in_order = true; // rows of the one part are those of the step, in their order
    auto operator<=>(const AttentionForm &) const = default;
};

// Rows of one sequence within a stream.
struct StreamRun {
    int stream, first; // first: among the stream's rows
    int sequence, begin, n; // rows [begin, begin + n) of the step
    int first_block, n_blocks; // in the sequence's table: those that the rows see
};

// A step's attention in one group of layers.
struct GroupAttention {
    AttentionForm form;
    // By part.  `live`: blocks that are seen, ascending, of a part of that form.
    std::vector<std::vector<StreamRun>> runs;
    std::vector<std::vector<int32_t>> live;
};

struct AttentionLimits {
    int max_rows, max_sequences, max_kv_tokens; // max_kv_tokens: of a step's sequences together, on the CPU
};

class AttentionPlanner {
  public:
    // `on_device`: else every step takes the form `live`, of which all others are checked.
    AttentionPlanner(const Trace &trace, const KvStore &store, const AttentionLimits &limits, bool on_device);
    // Layers of the group have no flash attention: all their scores are made.
    void set_explicit(int group) { groups_[static_cast<size_t>(group)].is_explicit = true; }
    // The device has the form `paged` for layers of the group.
    void set_paged(int group) { groups_[static_cast<size_t>(group)].is_paged = true; }
    // `n_tokens`: the step's rows, padded.
    std::vector<GroupAttention> plan(const StepBatch &batch, int n_tokens) const;
    // Forms that need the most memory, for steps of n_tokens rows.
    std::vector<std::vector<AttentionForm>> largest(int n_tokens) const;
    // Forms with `paged`, to see whether the device supports it.
    std::vector<AttentionForm> paged(int n_tokens) const;

  private:
    struct Group {
        CacheLifetime lifetime;
        int n_layers = 0, pool_tokens = 0; // pool_tokens: padded
        // Means of the group's layers: bytes of a token's K and V; numbers that a pair of row and cached token are
        // multiplied by, twice; queries and results of a row; heads that share K and V.
        double token_bytes = 0, pair_products = 0, row_bytes = 0, n_head = 0;
        int shared_by = 1;
        bool is_explicit = false, is_paged = false;
    };
    struct Choice {
        AttentionPart part;
        std::vector<StreamRun> runs;
        double cost;
        std::vector<int32_t> live = {};
    };
    using Rows = std::vector<StreamRun>; // whole sequences, each a stream
    double cost(const Group &group, const AttentionPart &part) const;
    Choice together(const Group &group, CachedRows source, const Rows &rows, int n_rows, int n_kv,
                    int first_kv = 0) const;
    StreamRun part_of(size_t g, const StreamRun &all, int done, int n, const StepBatch &batch) const;
    Choice apart(size_t g, const Rows &rows, int stream_rows, int n_exact, const StepBatch &batch) const;
    Choice by_tables(size_t g, const Rows &rows, int n_exact, const StepBatch &batch) const;
    Choice best(size_t g, const Rows &rows, int n_exact, const StepBatch &batch) const;
    GroupAttention plan_group(size_t g, const StepBatch &batch, int n_tokens) const;
    std::vector<Group> groups_;
    int max_rows_;
    bool on_device_;
};

// Sizes that streams, rows and cached tokens are padded to.
int padded_rows(int n, int limit);
int padded_kv_tokens(int n, int limit);

} // namespace quire
