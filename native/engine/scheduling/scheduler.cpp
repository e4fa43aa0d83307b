#include "engine/scheduling/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace quire {
namespace {

void require_positive(int64_t value, const char *what) {
    if (value < 1) throw RequestError("scheduler", cat(what, " is ", value, ": expected a positive number"));
}

std::string too_long(const CachePool &pool, const CacheNeed &need, int64_t max_tokens) {
    if (pool.n_groups() == 1 && !pool.has_states()) {
        const auto n_in_budget = static_cast<int64_t>(pool.ledger().size_bytes() / pool.group(0)->block_bytes());
        return cat("a sequence of up to ", max_tokens, " tokens does not fit into the cache of ",
                   std::min<int64_t>(pool.group(0)->n_usable(), n_in_budget), " blocks of ", pool.block_tokens(),
                   " tokens: ask for fewer or give the cache more blocks");
    }
    return cat("a sequence of up to ", max_tokens, " tokens needs ", pool.bytes(need),
               " bytes and does not fit into the cache of ", pool.ledger().size_bytes(),
               ": ask for fewer or give the cache more memory");
}

} // namespace

Scheduler::Scheduler(SchedulerConfig config, std::shared_ptr<CachePool> pool)
    : config_(std::move(config)), pool_(std::move(pool)), pins_(pool_, pool_->ledger().size_bytes() / 2),
      ranks_(config_.policy, config_.weights) {
    require_positive(config_.max_step_tokens, "max_step_tokens");
    require_positive(config_.max_step_logit_rows, "max_step_logit_rows");
    require_positive(config_.max_step_kv_tokens.value_or(1), "max_step_kv_tokens");
    require_positive(config_.max_running, "max_running");
    require_positive(config_.max_preemptions, "max_preemptions");
    require_positive(config_.turn_tokens, "turn_tokens");
    require_positive(config_.snapshot_tokens, "snapshot_tokens");
    if (config_.kept_back_blocks.value_or(0) < 0)
        throw RequestError("scheduler", cat("kept_back_blocks is ", *config_.kept_back_blocks, ": expected 0 or more"));
    const DynamicWeights &w = config_.weights;
    if (!(w.turn_priority > 0) || !std::isfinite(w.priority_s + w.token_s + w.turn_priority))
        throw RequestError("scheduler", cat("weights are out of range: priority_s ", w.priority_s, ", token_s ",
                                            w.token_s, " and turn_priority ", w.turn_priority,
                                            "; expected finite numbers, turn_priority above 0"));
    const int rows = std::min(config_.max_step_tokens, config_.max_step_logit_rows);
    if (config_.max_running > rows)
        throw RequestError("scheduler", cat("max_running is ", config_.max_running, ": expected at most ", rows,
                                            ", the tokens and logit rows of a step"));
}

Sequence &Scheduler::find(SequenceId id) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) throw RequestError("scheduler", cat("unknown sequence ", static_cast<uint64_t>(id)));
    return *found->second;
}

void Scheduler::require_fit(int64_t n_prompt, int64_t max_tokens, LogitRows rows, int64_t n_source) const {
    const int64_t n_computed = std::max(n_prompt, max_tokens - 1);
    require_source(n_source);
    const CacheNeed need = most_needed(n_computed, n_source);
    if (!pool_->can_hold(need)) throw CapacityError("scheduler", too_long(*pool_, need, max_tokens));
    if (undivided()) require_whole_prompt(n_prompt, max_tokens, rows);
    if (config_.max_step_kv_tokens && std::max(n_computed, n_source) > *config_.max_step_kv_tokens)
        throw CapacityError("scheduler", cat("a sequence may reach ", std::max(max_tokens, n_source),
                                             " tokens: a step sees at most ", *config_.max_step_kv_tokens));
}

void Scheduler::require_source(int64_t n_source) const {
    if (pool_->has_source() != (n_source > 0))
        throw RequestError("scheduler",
                           cat("a sequence has ", n_source,
                               " tokens of source text: expected some exactly if the model encodes a source"));
    if (n_source >= config_.max_step_tokens) // with a first token of the answer
        throw CapacityError("scheduler", cat("the source text has ", n_source, " tokens: expected less than the ",
                                             config_.max_step_tokens, " of a step, as it is encoded as a whole"));
}

void Scheduler::require_whole_prompt(int64_t n_prompt, int64_t max_tokens, LogitRows rows) const {
    if (max_tokens > n_prompt)
        throw UnsupportedError("scheduler", cat("cannot generate ", max_tokens - n_prompt,
                                                " tokens with a model whose tokens attend to later ones"));
    const int64_t limit = rows == LogitRows::every ? std::min(config_.max_step_tokens, config_.max_step_logit_rows)
                                                   : config_.max_step_tokens;
    if (n_prompt > limit)
        throw CapacityError("scheduler", cat("the prompt has ", n_prompt, " tokens: expected at most the ", limit,
                                             " of a step, as it is computed as a whole"));
}

void Scheduler::require_whole_media(const PromptMedia &media, LogitRows rows) const {
    if (!pool_->has_bidirectional_media()) return;
    const int limit = rows == LogitRows::every ? std::min(config_.max_step_tokens, config_.max_step_logit_rows)
                                               : config_.max_step_tokens;
    if (const int64_t n = media.most_bidirectional(); n > limit)
        throw CapacityError("scheduler", cat("an image has ", n, " tokens, which one step has to compute: at most ",
                                             limit, " fit (raise max_step_tokens)"));
}

std::vector<SequenceId> Scheduler::submit(SequenceSpec spec, int n_choices, double now_s) {
    require_positive(n_choices, "n_choices");
    if (!std::isfinite(now_s))
        throw RequestError("scheduler", cat("the clock shows ", now_s, ": expected a finite number"));
    if (spec.tokens.empty()) throw RequestError("scheduler", "empty prompt");
    const auto n_prompt = static_cast<int64_t>(spec.tokens.size());
    spec.max_tokens = std::max(spec.max_tokens, n_prompt);
    require_fit(n_prompt, spec.max_tokens, spec.logit_rows, static_cast<int64_t>(spec.source.size()));
    if (spec.media) require_whole_media(*spec.media, spec.logit_rows);
    std::ranges::sort(spec.snapshot_positions);
    std::vector<SequenceId> ids;
    Sequence *leader = nullptr;
    for (int choice = 0; choice < n_choices; ++choice) {
        const SequenceId id{++n_submitted_};
        auto sequence = std::make_unique<Sequence>(id, spec, now_s, pool_, config_.max_step_tokens);
        if (leader) {
            sequence->queue = SequenceQueue::following;
            sequence->leader = leader;
            leader->followers.push_back(sequence.get());
        } else {
            leader = sequence.get();
            waiting_.push_back(leader);
        }
        sequences_.emplace(id, std::move(sequence));
        ids.push_back(id);
    }
    return ids;
}

PinnedPrefixes::Pinned Scheduler::pin(SequenceSpec spec) {
    const auto n_tokens = static_cast<int64_t>(spec.tokens.size());
    Sequence text(SequenceId{}, std::move(spec), 0, pool_, config_.max_step_tokens);
    const SequenceCache::Names names{hashes(text), text.names_of_source.blocks};
    return pins_.add(names, text.cache.match(names, n_tokens));
}

void Scheduler::require_current(const Plan &plan) const {
    if (plan.number != n_plans_)
        throw InternalError("scheduler", cat("plan ", plan.number, " is stale: the scheduler has changed since"));
}

void Scheduler::commit(const Plan &plan) {
    require_current(plan);
    ++n_plans_;
    for (const PlanItem &item : plan.items) {
        Sequence &s = *item.sequence;
        const int32_t n_known = item.n_tokens - item.n_drafted;
        s.n_computed += n_known;
        s.next_logit = std::max(s.next_logit, s.n_computed);
        if (const int64_t n_turns = s.n_new() / config_.turn_tokens; n_turns > s.n_turns) {
            s.n_turns = n_turns;
            ranks_.served(s.key);
        }
        totals_.n_computed_tokens += n_known + item.n_encoded;
        if (item.n_encoded > 0) {
            s.is_encoded = true;
            s.cache.publish_source(s.names_of_source.blocks);
        }
        totals_.n_recomputed_tokens += std::max<int64_t>(0, std::min(s.n_computed, s.n_once_computed) - item.first);
        if (item.n_drafted > 0)
            await_verdict(s, item);
        else
            advance(s);
        if (!s.followers.empty() && s.n_computed >= s.n_prompt) start_followers(s);
    }
}

void Scheduler::advance(Sequence &s) {
    s.cache.advance(s.chain.of(std::span(s.tokens).first(static_cast<size_t>(s.n_computed))), s.n_computed,
                    s.n_tokens());
    keep_state(s);
}

// A snapshot, where one is due: see the head of scheduler.h.
void Scheduler::keep_state(Sequence &s) {
    if (!pool_->has_states() || s.n_computed % pool_->block_tokens() != 0) return;
    SnapshotKind kind;
    if (s.n_computed % snapshot_distance() == 0 && s.n_computed != next_message_end(s, s.n_computed - 1))
        kind = SnapshotKind::spaced;
    else if (s.n_computed >= s.n_prompt)
        kind = SnapshotKind::rolling;
    else if (s.n_computed == next_message_end(s, s.n_computed - 1))
        kind = SnapshotKind::message;
    else
        return;
    s.cache.snapshot(s.chain.of(std::span(s.tokens).first(static_cast<size_t>(s.n_computed))), kind);
}

void Scheduler::start_followers(Sequence &leader) {
    for (Sequence *s : std::exchange(leader.followers, {})) {
        s->leader = nullptr;
        s->next_logit = leader.next_logit; // the leader's row serves all
        s->n_cached = leader.n_cached;
        const bool has_place = !s->is_paused && running_.size() < static_cast<size_t>(config_.max_running);
        if (has_place && leader.cache.can_fork()) {
            s->cache = leader.cache.fork();
            s->n_computed = s->n_found = leader.n_computed;
            s->is_encoded = leader.is_encoded;
            s->queue = SequenceQueue::running;
            running_.push_back(s);
        } else { // it finds the prompt in the cache later
            s->queue = SequenceQueue::waiting;
            waiting_.push_back(s);
        }
    }
}

void Scheduler::append(SequenceId id, int32_t token) {
    Sequence &s = find(id);
    if (s.has_work() || s.queue == SequenceQueue::following)
        throw InternalError("scheduler",
                            cat("sequence ", static_cast<uint64_t>(id), " gets a token before its row of logits"));
    if (s.n_tokens() >= s.max_tokens)
        throw InternalError("scheduler", cat("sequence ", static_cast<uint64_t>(id), " exceeds its limit of ",
                                             s.max_tokens, " tokens"));
    const bool is_drafted = s.n_unverified > 0;
    s.tokens.push_back(token);
    if (is_drafted) take_verdict(s, token);
}

void Scheduler::pause(SequenceId id) {
    Sequence &s = find(id);
    if (s.is_paused) return;
    ++n_plans_;
    s.is_paused = true;
    s.forget_fetch();
    if (s.queue != SequenceQueue::running) return;
    std::erase(running_, &s);
    vacate(s);
    ++s.n_yields;
}

void Scheduler::resume(SequenceId id) { find(id).is_paused = false; }

void Scheduler::remove(SequenceId id) {
    Sequence &s = find(id);
    ++n_plans_;
    s.cache.release();
    if (s.leader) std::erase(s.leader->followers, &s);
    if (!s.followers.empty()) replace_leader(s);
    std::erase(s.queue == SequenceQueue::running ? running_ : waiting_, &s);
    sequences_.erase(id);
}

// The prompt is still wanted by the other choices: the next one computes it from what is cached.
void Scheduler::replace_leader(Sequence &old) {
    Sequence &leader = *old.followers.front();
    leader.followers.assign(old.followers.begin() + 1, old.followers.end());
    for (Sequence *s : leader.followers) s->leader = &leader;
    leader.leader = nullptr;
    leader.next_logit = old.next_logit;
    leader.queue = SequenceQueue::waiting;
    waiting_.push_back(&leader);
}

SchedulerStats Scheduler::stats() const {
    SchedulerStats stats = totals_;
    stats.n_waiting = static_cast<int64_t>(waiting_.size());
    for (const Sequence *s : waiting_) stats.n_waiting_tokens += static_cast<int64_t>(s->tokens.size()) - s->n_computed;
    stats.n_running = static_cast<int64_t>(running_.size());
    stats.n_paused = std::ranges::count_if(waiting_, [](const Sequence *s) { return s->is_paused; });
    stats.n_following = static_cast<int64_t>(sequences_.size() - waiting_.size() - running_.size());
    return stats;
}

} // namespace quire
