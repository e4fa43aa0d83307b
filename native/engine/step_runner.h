// The executor's side of the decoder: makes the cache's edits, runs the batch, and tells whose rows are which.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "engine/item_rows.h"
#include "engine/scheduler.h"
#include "graph/executor.h"

namespace quire {

class StepRunner {
  public:
    explicit StepRunner(std::shared_ptr<Executor> executor);
    // Throws what the executor throws; then nobody knows whose contents lie where.
    void make_edits(const Plan &plan);
    // Throws what the executor throws; then the contents of the plan's sequences are unknown.
    void run(const Plan &plan, const CachePool &pool, HiddenStates hidden);
    // Of the last run, once for each item in the plan's order.
    ItemRows next_rows(const PlanItem &item);

  private:
    void make(const CacheEdit &edit);
    std::shared_ptr<Executor> executor_;
    size_t n_vocab_, n_strips_, n_hidden_;
    StepBatch batch_;
    float *logits_ = nullptr, *maxima_ = nullptr; // of the next item
    const float *hidden_ = nullptr;               // it and maxima may be null
};

} // namespace quire
