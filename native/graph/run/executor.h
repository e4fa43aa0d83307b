// The decoder's view of a model: run a step, copy a block.  Abstract, so that it can be tested with a made-up model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "graph/trace/step_batch.h"
#include "kv/cache_spec.h"

namespace quire {

// A traced model on a device, with its cache store.  One owner thread.
class Executor {
  public:
    virtual ~Executor() = default;
    virtual int n_vocab() const = 0;
    virtual bool makes_logits() const { return true; } // else run() gives the hidden states, and nothing is generated
    virtual int max_rows() const = 0; // in one step
    virtual int max_logit_rows() const = 0; // in one step
    virtual int max_sequences() const = 0; // in one step
    virtual int max_kv_tokens() const = 0; // sum of n_kv over the sequences of one step; 0: no limit
    // The layout of the rows and states that layers keep, and how much of it there is room for.
    virtual const CacheLayout &cache() const = 0;
    virtual int n_blocks(int group) const = 0; // ids of the group, the null block included
    virtual int n_states() const = 0; // slots, slot 0 included: it is always zero and never written
    virtual size_t cache_budget_bytes() const = 0; // blocks and states in use together
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
    // Contents of a block in every layer of the group, of CacheGroup::block_bytes, or of a state, of
    // CacheLayout::state_bytes(); the order within them is the executor's own.  UnsupportedError if there is no way.
    virtual void read_block(int group, int block, uint8_t *to);
    virtual void write_block(int group, int block, const uint8_t *from);
    virtual void read_state(int slot, uint8_t *to);
    virtual void write_state(int slot, const uint8_t *from);
    // Logits [logit_rows.size(), n_vocab], the caller's until the next call, to change as well; where the likeliest are
    // enough, others may be -inf.  Throws Error; the cache's
    // contents of the step's slots are then undefined, everything else is untouched.
    virtual float *run(const StepBatch &batch) = 0;
    // For a model whose cache has a group of source texts: the rows of `batch` are whole source texts, which leave in
    // that group what later rows attend to.  Other groups have no tables in it.  Throws as run() does.
    virtual void encode(const StepBatch & /*batch*/) {}
    // The largest logit of every strip of logit_strip of them (the last may have fewer) in the last run, not a number
    // where one is not finite: [logit_rows.size(), strips], the caller's like the logits.  Null where they are not
    // known.
    virtual float *maxima() { return nullptr; }
    // Taps: the layers after which a step leaves its hidden states, ascending; and those of the last run, [rows, n]
    // in the order of the batch, valid until the next one.
    struct TapRows {
        const float *data;
        size_t n;
    };
    virtual std::vector<int> tapped_layers() const { return {}; }
    virtual TapRows tap(size_t /*index in tapped_layers()*/) { return {nullptr, 0}; }
    // Features, which a head that predicts later tokens reads: numbers of a row that this model leaves (0: none), and
    // that it reads itself, as StepBatch has them; and those of the last run's rows, like taps.
    virtual int n_features() const { return 0; }
    virtual int n_features_read() const { return 0; }
    // Numbers of a row that the encoder reads in place of source tokens: those of a sound.  0: it reads tokens.
    virtual int n_source_features() const { return 0; }
    virtual const float *features() { return nullptr; }
    // Size of the hidden states that logits are made of; 0 where they cannot be had.
    virtual int n_hidden() const { return 0; }
    // Those of the last run's logit rows [logit_rows.size(), n_hidden], where it wanted them; valid until the next run.
    virtual const float *hidden() { return nullptr; }
};

inline void Executor::read_block(int, int, uint8_t *) { throw UnsupportedError("executor", "cannot read the cache"); }
inline void Executor::write_block(int, int, const uint8_t *) {
    throw UnsupportedError("executor", "cannot write to the cache");
}
inline void Executor::read_state(int, uint8_t *) { throw UnsupportedError("executor", "cannot read states"); }
inline void Executor::write_state(int, const uint8_t *) { throw UnsupportedError("executor", "cannot write states"); }

} // namespace quire
