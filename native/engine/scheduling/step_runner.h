// The executor's side of the decoder: makes the cache's edits, runs the batch, and tells whose rows are which.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/scheduling/item_rows.h"
#include "engine/scheduling/scheduler.h"
#include "graph/run/executor.h"

namespace quire {

// The results of a step that are looked at.
struct StepWants {
    HiddenStates hidden = HiddenStates::unwanted;
    std::vector<int32_t> likeliest = {}; // as in StepBatch
};

class StepRunner {
  public:
    explicit StepRunner(std::shared_ptr<Executor> executor);
    void use_tiers(std::shared_ptr<BlockTiers> tiers) { tiers_ = std::move(tiers); }
    // Contents that the pool has under a name; no data if it has none.
    TierData read(const TierKey &key, const CachePool &pool);
    // Throws what the executor throws; then nobody knows whose contents lie where.
    void make_edits(const Plan &plan);
    // Throws what the executor throws; then the contents of the plan's sequences are unknown.  `features`: of all
    // rows, for a head.
    void run(const Plan &plan, const CachePool &pool, StepWants wants, std::span<const float> features = {});
    // Features of the item that next_rows() is asked for next, in the last run; empty where the model shows none.
    std::span<const float> features(const PlanItem &item);
    // Rows of the last run, once for each item in the plan's order.
    ItemRows next_rows(const PlanItem &item);

  private:
    void make(const CacheEdit &edit);
    void offer(const CacheEdit &edit);
    TierData contents(int group, int block);
    void load(const CacheEdit &edit);
    std::vector<float> tapped(size_t end, size_t n) const;
    std::shared_ptr<Executor> executor_;
    std::shared_ptr<BlockTiers> tiers_; // null: none
    size_t n_vocab_, n_strips_, n_hidden_, n_taps_, n_features_, n_features_read_;
    std::vector<float> media_rows_; // for the step that runs
    StepBatch batch_, source_batch_;
    float *logits_ = nullptr, *maxima_ = nullptr; // the next item's
    const float *hidden_ = nullptr;               // it and maxima may be null
    std::vector<Executor::TapRows> taps_;         // the whole run's, where they are wanted
    size_t first_row_ = 0;                        // the next item's
};

} // namespace quire
