// A model without weights, to test the decoder: its logits are a hash of all tokens that the block tables lead to.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/executor.h"

namespace quire {

struct FakeExecutorOptions {
    int n_vocab = 64;
    int n_blocks = 65;
    int block_tokens = 32;
    int max_rows = 256;
    int max_logit_rows = 64;
    int max_sequences = 64;
    int max_kv_tokens = 0;
    double step_s = 0;                // how long a step takes
    std::optional<int32_t> fail_on;   // a step with this token throws CapacityError
    std::optional<int32_t> nan_after; // the logits of a sequence that has this token are NaN
};

// The cache keeps each slot's token and position; a sequence whose table leads to other positions than its own is an
// InternalError.  The logits of a row: h = 0; for each token of the context h = mix(h * 31 + token + 1); logit v is the
// upper 24 bits of mix(h + v), divided by 2^21.  mix is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
class FakeExecutor : public Executor {
  public:
    explicit FakeExecutor(const FakeExecutorOptions &options);
    int n_vocab() const override { return options_.n_vocab; }
    int max_rows() const override { return options_.max_rows; }
    int max_logit_rows() const override { return options_.max_logit_rows; }
    int max_sequences() const override { return options_.max_sequences; }
    int max_kv_tokens() const override { return options_.max_kv_tokens; }
    const CacheLayout &cache() const override { return layout_; }
    int n_blocks(int) const override { return options_.n_blocks; }
    int n_states() const override { return 1; }
    size_t cache_budget_bytes() const override {
        return static_cast<size_t>(options_.n_blocks - 1) * layout_.block_bytes();
    }
    void copy_block(int group, int from, int to) override;
    void copy_state(int, int) override {}
    void discard_block(int, int) override {}
    void discard_state(int) override {}
    float *run(const StepBatch &batch) override;

  private:
    struct Slot {
        int32_t token = -1, position = -1;
    };
    Slot &slot(int64_t index);
    void write(const StepBatch &batch);
    void run_sequence(const StepBatch &batch, size_t sequence);
    void add_row(uint64_t hash, bool is_nan);
    FakeExecutorOptions options_;
    CacheLayout layout_;
    std::vector<Slot> slots_;
    std::vector<float> logits_;
    size_t next_logit_row_ = 0;
};

} // namespace quire
