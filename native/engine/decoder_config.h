// What a decoder is told, and what follows for its scheduler and cache.
#pragma once

#include <memory>
#include <optional>

#include "engine/scheduler.h"
#include "engine/speculator.h"
#include "graph/executor.h"

namespace quire {

struct DecoderConfig {
    int64_t n_ctx = 0; // tokens of a prompt and its answer at most
    SchedulingPolicy policy = SchedulingPolicy::fifo;
    DynamicWeights weights;
    std::optional<int> max_step_tokens; // none: what the executor can
    std::optional<int> max_running;     // none: what the executor can
    std::optional<int> kept_back_blocks;
    int max_preemptions = SchedulerConfig{}.max_preemptions;
    int snapshot_tokens = SchedulerConfig{}.snapshot_tokens;
    std::string speculation = "off"; // of requests that do not say
    SpeculationConfig drafts;
    std::optional<double> step_s; // about so long may a step take, where fewer tokens make it shorter
    // Of an encoder-decoder model: the token that every answer begins after.  The prompt is what the encoder reads.
    std::optional<int32_t> decoder_start;
};

// The budgets of `config` within the executor's; CapacityError naming what exceeds them.
SchedulerConfig scheduler_config(const DecoderConfig &config, const Executor &executor);
// The pool over the executor's blocks and states.
std::shared_ptr<CachePool> cache_pool(const Executor &executor);

} // namespace quire
