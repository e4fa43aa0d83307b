// A model without weights, for tests of the decoder: its logits hash the tokens that layers see through the cache.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/run/executor.h"

namespace quire {

struct FakeExecutorOptions {
    int n_vocab = 64;
    int n_blocks = 65; // per group
    int block_tokens = 32;
    int max_rows = 256;
    int max_logit_rows = 64;
    int max_sequences = 64;
    int max_kv_tokens = 0;
    double step_s = 0;                // duration of a step in seconds
    std::optional<int32_t> fail_on;   // a step with this token throws CapacityError
    std::optional<int32_t> nan_after; // the logits of a sequence that has this token are NaN
    std::vector<CacheLifetime> layers = {CacheLifetime{}}; // those that keep rows, of 8 bytes per token
    int64_t n_state = 0; // size of the recurrent layer's state; 0: no such layer
    int n_states = 17;   // number of slots, including slot 0
    std::optional<size_t> budget_bytes;                    // none: enough for every block and slot
    bool undivided_prompts = false;                        // each row sees its whole prompt
    std::optional<int> fail_copy;                          // this copy of a block or state throws CapacityError
    bool shows_features = false; // a row's features are r as four 16-bit numbers
    bool reads_features = false; // a head: r is mix(r' * 31 + token + 1), where r' comes with the token
    // Numbers of a row of an image, all of which its rows see in every layer: 0: text only.  In the place of its token
    // a layer keeps n_vocab plus the first number.
    int media_width = 0;
};

// Each layer keeps the token and position of every row and hashes the tokens that a row sees: h = 0, then
// h = mix(h * 31 + token + 1) for each token, with the finalizer of SplitMix64 (Steele, Lea, Flood 2014) as mix.  The
// recurrent layer keeps such a hash of all tokens.  The hash r of a row is that of its only layer.  Several layers are
// combined in the order of the layout's groups, the recurrent one last: r = 0, then r = mix(r * 31 + h + 1) for each.
// Logit v is the upper 24 bits of mix(r + v), divided by 2^21.  Every row sees the whole source text.
//
// InternalError if a table leads to other positions than its sequence's, or a state contains another number of tokens.
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
    int n_states() const override { return options_.n_states; }
    size_t cache_budget_bytes() const override;
    bool undivided_prompts() const override { return options_.undivided_prompts; }
    int n_features() const override {
        return options_.shows_features || options_.reads_features ? n_feature_numbers : 0;
    }
    int n_features_read() const override {
        if (options_.media_width > 0) return 1 + options_.media_width;
        return options_.reads_features ? n_feature_numbers : 0;
    }
    const float *features() override { return features_.data(); }
    void copy_block(int group, int from, int to) override;
    void copy_state(int from, int to) override;
    void discard_block(int group, int block) override;
    void discard_state(int slot) override;
    // A state takes 16 bytes, so n_state must be 4 or more.
    void read_block(int group, int block, uint8_t *to) override;
    void write_block(int group, int block, const uint8_t *from) override;
    void read_state(int slot, uint8_t *to) override;
    void write_state(int slot, const uint8_t *from) override;
    float *run(const StepBatch &batch) override;
    void encode(const StepBatch &batch) override;

  private:
    struct Slot {
        int32_t token = -1, position = -1;
    };
    struct Seen { // a layer's summary of the tokens that it has seen
        uint64_t hash = 0;
        int64_t n_tokens = 0;
        bool is_nan = false;
    };
    Slot &slot(size_t group, int64_t index);
    Seen &state(int slot);
    void count_copy();
    void check_limits(const StepBatch &batch) const;
    void write(const StepBatch &batch);
    void run_sequence(const StepBatch &batch, size_t sequence);
    void see(Seen &seen, int32_t token) const;
    int32_t token_of(const StepBatch &batch, size_t row) const;
    Seen seen_by(const StepBatch &batch, size_t group, size_t sequence, int32_t row);
    Seen row_of(const StepBatch &batch, size_t sequence, int32_t row, const Seen *state);
    void add_logits(const Seen &seen);
    static constexpr int n_feature_numbers = 4;
    FakeExecutorOptions options_;
    CacheLayout layout_;
    std::vector<std::vector<Slot>> slots_; // [group]
    std::vector<Seen> states_;
    std::vector<float> logits_, features_;
    size_t next_logit_row_ = 0;
    int n_copies_ = 0;
};

} // namespace quire
