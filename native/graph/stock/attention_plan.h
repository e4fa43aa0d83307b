// How the rows of a step attend to cached rows in graphs of ggml's operators.
//
// A *stream* is a set of rows of the step that attend to the same cached rows.  For each group of layers, the rows of a
// step form one or two parts.  The streams of a part have equal sizes, and one of four forms:
//   pool      all rows attend to a stretch of the pool in place: nothing is copied, and shared blocks are read once.  A
//             mask hides other sequences' tokens; attention does not depend on the order of tokens.
//   live      all rows attend to one copy of each block that any of them sees.
//   sequence  a stream has rows of one sequence, and attends to copies of the blocks that these see; or a kernel of Quire's
//             own, if the device has it, follows the block table.
//   paged     each row is a stream, and a kernel of Quire's own, if the device has it, follows the block table: no copies,
//             no masks, and only tokens that the row sees are read.
// The cost of a form depends on the step, so each step chooses (attention_plan.cpp).
#pragma once

#include <compare>
#include <vector>

#include "graph/trace/step_batch.h"
#include "graph/trace/trace.h"

namespace quire {

class KvStore;

enum class CachedRows { pool, live, sequence, paged };

// Streams of one size.  Missing blocks are padded with the null block, missing rows with masked ones.
struct AttentionPart {
    CachedRows source;
    int n_streams, stream_rows;
    int n_kv; // cached tokens of each stream
    int first_kv = 0; // form `pool`: tokens of the pool before the stretch
    int n_rows() const { return n_streams * stream_rows; }
    auto operator<=>(const AttentionPart &) const = default;
};

struct AttentionForm {
    std::vector<AttentionPart> parts; // together they hold each row of the step once; empty: no layer attends
    bool in_order = true; // the only part has the rows of the step in their order
    auto operator<=>(const AttentionForm &) const = default;
};

// Rows of one sequence within a stream.
struct StreamRun {
    int stream, first; // first: its first row in the stream
    int sequence, begin, n; // rows [begin, begin + n) of the step
    int first_block, n_blocks; // the blocks of the sequence's table that the rows see
};

// The attention of a step in one group of layers.
struct GroupAttention {
    AttentionForm form;
    // By part.  `live`: the blocks seen by a part of that form, ascending.
    std::vector<std::vector<StreamRun>> runs;
    std::vector<std::vector<int32_t>> live;
};

struct AttentionLimits {
    int max_rows, max_sequences, max_kv_tokens; // max_kv_tokens: sum over the sequences of a step, on the CPU
};

class AttentionPlanner {
  public:
    // `on_device`: otherwise every step has the form `live`, the oracle of the others.
    AttentionPlanner(const Trace &trace, const KvStore &store, const AttentionLimits &limits, bool on_device);
    // The layers of the group have no flash attention, so all scores are computed.
    void set_explicit(int group) { groups_[static_cast<size_t>(group)].is_explicit = true; }
    // The device supports the form `paged` for the layers of the group.
    void set_paged(int group) { groups_[static_cast<size_t>(group)].is_paged = true; }
    // In the form `sequence`, nothing is copied in the layers of the group.
    void set_uncopied(int group) { groups_[static_cast<size_t>(group)].is_uncopied = true; }
    // `n_tokens`: the padded number of rows of the step.
    std::vector<GroupAttention> plan(const StepBatch &batch, int n_tokens) const;
    // The forms with the largest memory use, for steps of n_tokens rows.
    std::vector<std::vector<AttentionForm>> largest(int n_tokens) const;
    // Forms with `paged`, to find out if the device supports it.
    std::vector<AttentionForm> paged(int n_tokens) const;

  private:
    struct Group {
        CacheLifetime lifetime;
        int n_layers = 0, pool_tokens = 0; // pool_tokens: padded
        // Means over the group's layers: bytes of K and V of a token; multiplications for a row and a cached token;
        // bytes of queries and results of a row; heads that share K and V.
        double token_bytes = 0, pair_products = 0, row_bytes = 0, n_head = 0;
        int shared_by = 1;
        bool is_explicit = false, is_paged = false, is_uncopied = false;
    };
    struct Choice {
        AttentionPart part;
        std::vector<StreamRun> runs;
        double cost;
        std::vector<int32_t> live = {};
    };
    using Rows = std::vector<StreamRun>; // a stream for each sequence
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

// The sizes to which streams, rows and cached tokens are padded.
int padded_rows(int n, int limit);
int padded_kv_tokens(int n, int limit);

} // namespace quire
