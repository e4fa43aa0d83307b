#include "engine/scheduling/scheduler_options.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace quire {
namespace {

int within(std::optional<int> wanted, int limit, const char *what) {
    if (wanted && *wanted > limit)
        throw CapacityError("decoder", cat(what, " is ", *wanted, ": the executor allows at most ", limit));
    return wanted.value_or(limit);
}

} // namespace

SchedulerConfig scheduler_config(const SchedulerOptions &options, const Executor &executor) {
    if (options.n_ctx < 2)
        throw RequestError("decoder",
                           cat("n_ctx is ", options.n_ctx, ": expected 2 or more, for a prompt and an answer"));
    SchedulerConfig result;
    result.policy = options.policy;
    result.weights = options.weights;
    result.max_step_tokens = within(options.max_step_tokens, executor.max_rows(), "max_step_tokens");
    result.max_step_logit_rows = executor.max_logit_rows();
    if (executor.max_kv_tokens() > 0) result.max_step_kv_tokens = executor.max_kv_tokens();
    const int rows = std::min(result.max_step_tokens, result.max_step_logit_rows);
    result.max_running = within(options.max_running, std::min(executor.max_sequences(), rows), "max_running");
    result.kept_back_blocks = options.kept_back_blocks;
    result.max_preemptions = options.max_preemptions;
    result.snapshot_tokens = options.snapshot_tokens;
    if (executor.undivided_prompts()) result.prompts = SchedulerConfig::Prompts::undivided;
    return result;
}

std::shared_ptr<CachePool> cache_pool(const Executor &executor) {
    CachePoolSpec spec;
    const CacheLayout &layout = executor.cache();
    for (const CacheGroup &group : layout.groups())
        spec.groups.push_back(
            {group.lifetime, executor.n_blocks(static_cast<int>(spec.groups.size())), group.block_bytes});
    spec.block_tokens = layout.block_tokens();
    spec.state_bytes = layout.state_bytes();
    if (spec.state_bytes > 0) spec.n_states = executor.n_states();
    spec.budget_bytes = executor.cache_budget_bytes();
    if (executor.prefers_near_blocks()) spec.reuse = BlockReuse::by_address;
    return std::make_shared<CachePool>(std::move(spec));
}

} // namespace quire
