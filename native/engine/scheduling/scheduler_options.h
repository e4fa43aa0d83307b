// Options of a scheduler, and what follows from them and the executor.
#pragma once

#include <memory>
#include <optional>

#include "engine/scheduling/scheduler.h"
#include "graph/run/executor.h"

namespace quire {

struct SchedulerOptions {
    int64_t n_ctx = 0; // tokens of a prompt and its answer at most
    SchedulingPolicy policy = SchedulingPolicy::fifo;
    DynamicWeights weights;
    std::optional<int> max_step_tokens; // none: what the executor can
    std::optional<int> max_running;     // none: what the executor can
    std::optional<int> kept_back_blocks;
    int max_preemptions = SchedulerConfig{}.max_preemptions;
    int snapshot_tokens = SchedulerConfig{}.snapshot_tokens;
};

// The budgets of `options` within the executor's; CapacityError naming what exceeds them.
SchedulerConfig scheduler_config(const SchedulerOptions &options, const Executor &executor);
// The pool over the executor's blocks and states.
std::shared_ptr<CachePool> cache_pool(const Executor &executor);

} // namespace quire
