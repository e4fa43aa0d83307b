// What the decoder needs of a model: run a step, copy a block.  Abstract, so that it can be tested with a made-up model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire {

inline constexpr size_t logit_strip = 64;
constexpr size_t n_logit_strips(size_t n_vocab) { return (n_vocab + logit_strip - 1) / logit_strip; }

enum class HiddenStates { unwanted, wanted };

// Flat arrays of one step.  Rows are the step's tokens, grouped by sequence and in order of position.
struct StepBatch {
    std::vector<int32_t> tokens; // [n_rows] ids
    std::vector<int32_t> positions; // [n_rows] position in the sequence
    std::vector<int32_t> slots; // [n_rows] where the row's K and V go: block * block_tokens + offset
    std::vector<int32_t> logit_rows; // rows whose logits are wanted, ascending
    std::vector<int32_t> row_begin; // [n_sequences + 1] first row of each sequence
    std::vector<int32_t> n_kv; // [n_sequences] tokens in the cache after this step's writes
    std::vector<int32_t> table_begin; // [n_sequences] first entry of the sequence's blocks in `tables`
    std::vector<int32_t> tables; // block ids
    HiddenStates hidden = HiddenStates::unwanted; // of the logit rows
};

// A traced model on a device, with its cache store.  One owner thread.
class Executor {
  public:
    virtual ~Executor() = default;
    virtual int n_vocab() const = 0;
    virtual int max_rows() const = 0; // of one step
    virtual int max_logit_rows() const = 0; // of one step
    virtual int max_sequences() const = 0; // of one step
    virtual int max_kv_tokens() const = 0; // sum of n_kv over the sequences of one step; 0: no limit
    virtual int n_blocks() const = 0; // of the store, the null block included
    virtual int block_tokens() const = 0;
    // Copy the contents of a block in every layer (copy on write).
    virtual void copy_block(int from, int to) = 0;
    // Logits [logit_rows.size(), n_vocab], the caller's until the next call, to change as well.  Throws Error; the cache's
    // contents of the step's slots are then undefined, everything else is untouched.
    virtual float *run(const StepBatch &batch) = 0;
    // Of the last run's logits the largest of every strip of logit_strip of them (the last may have fewer), not a number
    // where one is not finite: [logit_rows.size(), strips], the caller's like the logits.  Null where they are not known.
    virtual float *maxima() { return nullptr; }
    // Size of the hidden states that logits are made of; 0 where they cannot be had.
    virtual int n_hidden() const { return 0; }
    // Those of the last run's logit rows [logit_rows.size(), n_hidden], where it wanted them; valid until the next run.
    virtual const float *hidden() { return nullptr; }
};

} // namespace quire
