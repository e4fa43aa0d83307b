// What the decoder needs of a model: run a step, copy a block.  Abstract, so that it can be tested with a made-up model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/cache_spec.h"

namespace quire {

inline constexpr size_t logit_strip = 64;
constexpr size_t n_logit_strips(size_t n_vocab) { return (n_vocab + logit_strip - 1) / logit_strip; }

enum class HiddenStates { unwanted, wanted };

// Where the rows of a step lie in one group of layers (kv/cache_spec.h).
struct GroupBatch {
    std::vector<int32_t> slots; // [n_rows] where the row's K and V go: block * kv_block_tokens + offset
    std::vector<int32_t> table_begin; // [n_sequences] first entry of the sequence's blocks in `tables`
    std::vector<int32_t> tables; // block ids; 0, the null block, where no row of the step or later sees the block
    // [n_sequences] tokens that the sequence has in a group that is of source texts; empty: those of the step's n_kv.
    std::vector<int32_t> n_source = {};
    const std::vector<int32_t> &n_kv_of(const std::vector<int32_t> &of_step) const {
        return n_source.empty() ? of_step : n_source;
    }
    // The last position that a row at `position` of a sequence sees: its own, or the source's last.
    int32_t last_seen(int sequence, int32_t position) const {
        return n_source.empty() ? position : n_source[static_cast<size_t>(sequence)] - 1;
    }
};

// Flat arrays of one step.  Rows are the step's tokens, grouped by sequence and in order of position.
struct StepBatch {
    std::vector<int32_t> tokens; // [n_rows] ids
    std::vector<int32_t> positions; // [n_rows] position in the sequence
    std::vector<int32_t> token_types; // [n_rows] 0; 1 in the second text of a pair
    // [3, n_rows] places in time, height and width, for rotations with sections; empty: the position in all three.
    std::vector<int32_t> axes;
    std::vector<int32_t> logit_rows; // rows whose logits are wanted, ascending
    // [logit_rows.size()] k: of the row the k likeliest are enough, of equal ones those with smaller ids; 0: all are wanted,
    // as they are where this is empty.
    std::vector<int32_t> likeliest = {};
    std::vector<int32_t> row_begin; // [n_sequences + 1] first row of each sequence
    std::vector<int32_t> n_kv; // [n_sequences] tokens in the cache after this step's writes
    std::vector<GroupBatch> groups; // by group of the cache's layout
    std::vector<int32_t> states; // [n_sequences] slot of the recurrent state; empty where no layer keeps one
    HiddenStates hidden = HiddenStates::unwanted; // of the logit rows
    std::span<const float> features = {}; // [n_rows, n] of a head; the caller's, until the step ran
};

// A traced model on a device, with its cache store.  One owner thread.
class Executor {
  public:
    virtual ~Executor() = default;
    virtual int n_vocab() const = 0;
    virtual bool makes_logits() const { return true; } // else run() gives the hidden states, and nothing is generated
    virtual int max_rows() const = 0; // of one step
    virtual int max_logit_rows() const = 0; // of one step
    virtual int max_sequences() const = 0; // of one step
    virtual int max_kv_tokens() const = 0; // sum of n_kv over the sequences of one step; 0: no limit
    // What the model's layers keep, and how much of it there is room for.
    virtual const CacheLayout &cache() const = 0;
    virtual int n_blocks(int group) const = 0; // ids of the group, the null block included
    virtual int n_states() const = 0; // slots, slot 0 included: it is always zero and never written
    virtual size_t cache_budget_bytes() const = 0; // of the blocks and states in use together
    // A step costs less where the blocks of its sequences lie near each other.
    virtual bool prefers_near_blocks() const { return false; }
    // Rows attend to each other both ways: a prompt is one item of a plan, and nothing is cached.
    virtual bool undivided_prompts() const { return false; }
    // The model tells the second text of a pair from the first, by the types of tokens.
    virtual bool reads_token_types() const { return false; }
    // Copy the contents of a block in every layer of the group (copy on write), or of a state.
    virtual void copy_block(int group, int from, int to) = 0;
    virtual void copy_state(int from, int to) = 0;
    // Contents that are lost: the memory may go back to the system until it is written again.
    virtual void discard_block(int group, int block) = 0;
    virtual void discard_state(int slot) = 0;
    // Logits [logit_rows.size(), n_vocab], the caller's until the next call, to change as well; where the likeliest are
    // enough, others may be -inf.  Throws Error; the cache's
    // contents of the step's slots are then undefined, everything else is untouched.
    virtual float *run(const StepBatch &batch) = 0;
    // Of a model whose cache has a group of source texts: the rows of `batch` are whole source texts, which leave in that
    // group what later rows attend to.  Other groups have no tables in it.  Throws as run() does.
    virtual void encode(const StepBatch & /*batch*/) {}
    // Of the last run's logits the largest of every strip of logit_strip of them (the last may have fewer), not a number
    // where one is not finite: [logit_rows.size(), strips], the caller's like the logits.  Null where they are not known.
    virtual float *maxima() { return nullptr; }
    // Taps: the layers after which a step leaves its hidden states, ascending; and those of the last run, [rows, n] in the
    // order of the batch, valid until the next one.
    struct TapRows {
        const float *data;
        size_t n;
    };
    virtual std::vector<int> tapped_layers() const { return {}; }
    virtual TapRows tap(size_t /*of tapped_layers()*/) { return {nullptr, 0}; }
    // Features, which a head that predicts later tokens reads: numbers of a row that this model leaves (0: none), and that
    // it reads itself, as StepBatch has them; and those of the last run's rows, like taps.
    virtual int n_features() const { return 0; }
    virtual int n_features_read() const { return 0; }
    virtual const float *features() { return nullptr; }
    // Size of the hidden states that logits are made of; 0 where they cannot be had.
    virtual int n_hidden() const { return 0; }
    // Those of the last run's logit rows [logit_rows.size(), n_hidden], where it wanted them; valid until the next run.
    virtual const float *hidden() { return nullptr; }
};

} // namespace quire
