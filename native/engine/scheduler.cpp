#include "engine/scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"

namespace quire {
namespace {

void require_positive(int64_t value, const char *what) {
    if (value < 1) throw RequestError("scheduler", cat(what, " must be positive but is ", value));
}

// Rows of logits that computing [first, first + n) gives the sequence.
int64_t logit_rows(const Sequence &s, int64_t first, int64_t n) {
    return std::max<int64_t>(0, first + n - std::max(first, s.next_logit));
}

} // namespace

Scheduler::Scheduler(SchedulerConfig config, std::shared_ptr<BlockPool> pool)
    : config_(std::move(config)), pool_(std::move(pool)), ranks_(config_.policy, config_.weights) {
    require_positive(config_.max_step_tokens, "max_step_tokens");
    require_positive(config_.max_step_logit_rows, "max_step_logit_rows");
    require_positive(config_.max_step_kv_tokens.value_or(1), "max_step_kv_tokens");
    require_positive(config_.max_running, "max_running");
    require_positive(config_.max_preemptions, "max_preemptions");
    if (config_.kept_back_blocks.value_or(0) < 0)
        throw RequestError("scheduler",
                           cat("kept_back_blocks must not be negative but is ", *config_.kept_back_blocks));
    const DynamicWeights &w = config_.weights;
    if (!(w.half_life_s > 0) || !std::isfinite(w.priority_s + w.token_s + w.share_s))
        throw RequestError("scheduler",
                           cat("weights must be finite and half_life_s positive but they are priority_s ", w.priority_s,
                               ", token_s ", w.token_s, ", share_s ", w.share_s, ", half_life_s ", w.half_life_s));
    const int rows = std::min(config_.max_step_tokens, config_.max_step_logit_rows);
    if (config_.max_running > rows)
        throw RequestError("scheduler", cat("max_running must not exceed a step's tokens and logit rows (", rows,
                                            ") but is ", config_.max_running));
}

Sequence &Scheduler::find(SequenceId id) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end())
        throw RequestError("scheduler", cat("a sequence must be known but ", static_cast<uint64_t>(id), " is not"));
    return *found->second;
}

void Scheduler::require_fit(int64_t n_prompt, int64_t max_tokens) const {
    const int64_t n_computed = std::max(n_prompt, max_tokens - 1);
    if (pool_->blocks_for_tokens(n_computed) > pool_->n_usable())
        throw CapacityError("scheduler", cat("a sequence must fit into the cache of ", pool_->n_usable(), " blocks of ",
                                             pool_->block_tokens(), " tokens but may reach ", max_tokens,
                                             " tokens; ask for fewer or give the cache more blocks"));
    if (config_.max_step_kv_tokens && n_computed > *config_.max_step_kv_tokens)
        throw CapacityError("scheduler", cat("a sequence must fit into a step of ", *config_.max_step_kv_tokens,
                                             " cached tokens but may reach ", max_tokens, " tokens"));
}

std::vector<SequenceId> Scheduler::submit(SequenceSpec spec, int n_choices, double now_s) {
    require_positive(n_choices, "n_choices");
    if (!std::isfinite(now_s)) throw RequestError("scheduler", cat("the clock must be finite but shows ", now_s));
    if (spec.tokens.empty()) throw RequestError("scheduler", "a prompt must have at least one token but has none");
    const auto n_prompt = static_cast<int64_t>(spec.tokens.size());
    spec.max_tokens = std::max(spec.max_tokens, n_prompt);
    require_fit(n_prompt, spec.max_tokens);
    std::vector<SequenceId> ids;
    Sequence *leader = nullptr;
    for (int choice = 0; choice < n_choices; ++choice) {
        const SequenceId id{++n_submitted_};
        auto sequence = std::make_unique<Sequence>(id, spec, now_s, pool_);
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

void Scheduler::Budget::hold(const Sequence &decoding, int sign) {
    if (!decoding.has_work() || !decoding.is_decoding()) return;
    held_rows += sign;
    held_kv_tokens += sign * decoding.n_tokens();
}

Plan Scheduler::plan(double now_s) { return plan_within(now_s, config_.max_step_tokens); }

Plan Scheduler::plan_within(double now_s, int step_tokens) {
    Plan plan;
    plan.number = ++n_plans_;
    ranks_.advance_to(now_s);
    Budget budget{std::clamp(step_tokens, config_.max_running, config_.max_step_tokens), config_.max_step_logit_rows,
                  config_.max_step_kv_tokens.value_or(std::numeric_limits<int64_t>::max())};
    run_running(plan, budget);
    if (plan.preempted.empty()) admit_waiting(plan, budget);
    return plan;
}

void Scheduler::run_running(Plan &plan, Budget &budget) {
    Ranked ranked;
    ranked.reserve(running_.size());
    for (Sequence *s : running_) {
        ranked.emplace_back(ranks_.rank(*s, config_.max_preemptions), s);
        budget.hold(*s, +1);
    }
    std::ranges::sort(ranked, {}, &Ranked::value_type::first);
    std::ranges::transform(ranked, running_.begin(), &Ranked::value_type::second);
    for (size_t i = 0; i < running_.size();) { // preemption shortens it from the end
        Sequence &s = *running_[i];
        budget.hold(s, -1);
        const int64_t n = s.has_work() ? chunk(s, s.n_computed, plan, budget) : 0;
        if (n > 0 && !make_room(s, n, plan, budget)) break; // it was the last one
        if (n > 0) add_item(s, n, plan, budget);
        ++i;
    }
}

int64_t Scheduler::chunk(const Sequence &s, int64_t n_computed, const Plan &plan, const Budget &budget) const {
    const int64_t held_kv = plan.items.empty() ? 0 : budget.held_kv_tokens; // the first one advances in any case
    const int64_t rows = budget.logit_rows - budget.held_rows;
    const int64_t until_logits = std::max<int64_t>(0, s.next_logit - n_computed);
    const int64_t n = std::min({s.n_tokens() - n_computed, budget.tokens - budget.held_rows, until_logits + rows,
                                budget.kv_tokens - held_kv - n_computed});
    return std::max<int64_t>(0, n);
}

// Free blocks for n more tokens, at the cost of those that come last.  False: the sequence itself came last.
bool Scheduler::make_room(Sequence &s, int64_t n, Plan &plan, Budget &budget) {
    while (s.table.blocks_needed(s.n_computed, s.n_computed + n) > pool_->n_free()) {
        Sequence &victim = *running_.back();
        if (is_guarded(victim))
            throw InternalError("scheduler", cat("guarded sequences must fit into the pool but ",
                                                 static_cast<uint64_t>(s.id), " finds no block"));
        if (&victim != &s) budget.hold(victim, -1);
        running_.pop_back();
        preempt(victim);
        plan.preempted.push_back(victim.id);
        if (&victim == &s) return false;
    }
    return true;
}

void Scheduler::preempt(Sequence &s) {
    s.table.release();
    s.n_computed = 0;
    ++s.n_preemptions;
    s.queue = SequenceQueue::waiting;
    waiting_.push_back(&s);
    ++totals_.n_preemptions;
}

void Scheduler::add_item(Sequence &s, int64_t n, Plan &plan, Budget &budget) {
    const int64_t end = s.n_computed + n;
    if (s.n_computed < int64_t{s.table.n_blocks()} * pool_->block_tokens())
        if (const auto copy = s.table.ensure_writable(s.n_computed)) plan.copies.push_back(*copy);
    s.table.reserve(end);
    const int64_t rows = logit_rows(s, s.n_computed, n);
    plan.items.push_back({s.id, &s, s.n_computed, static_cast<int32_t>(n), static_cast<int32_t>(rows)});
    plan.n_tokens += static_cast<int32_t>(n);
    plan.n_logit_rows += static_cast<int32_t>(rows);
    budget.tokens -= n;
    budget.logit_rows -= rows;
    budget.kv_tokens -= end;
}

void Scheduler::admit_waiting(Plan &plan, Budget &budget) {
    if (running_.size() >= static_cast<size_t>(config_.max_running)) return;
    Ranked heap;
    for (Sequence *s : waiting_)
        if (s->has_work()) heap.emplace_back(ranks_.rank(*s, config_.max_preemptions), s);
    const auto later = [](const auto &a, const auto &b) { return a.first > b.first; };
    std::ranges::make_heap(heap, later);
    while (!heap.empty() && budget.tokens > 0 && running_.size() < static_cast<size_t>(config_.max_running)) {
        std::ranges::pop_heap(heap, later);
        Sequence &s = *heap.back().second;
        heap.pop_back();
        if (!admit(s, plan, budget)) return; // nobody overtakes, or a long one would wait for ever
    }
}

// True where the sequence was admitted, or had better wait a step while others go on.
bool Scheduler::admit(Sequence &s, Plan &plan, Budget &budget) {
    const auto known = hashes(s);
    const PrefixMatch match = s.table.match(known, s.next_logit);
    if (prefix_in_flight(known, match, s.next_logit)) return true;
    const auto n_new = static_cast<int32_t>(pool_->blocks_for_tokens(s.n_tokens())) - match.n_blocks;
    const bool first = running_.empty();
    const int kept_back = first ? 0 : config_.kept_back_blocks.value_or(static_cast<int>(running_.size()));
    if (n_new + match.n_free_blocks + kept_back > pool_->n_free()) return false;
    if (is_guarded(s) && !room_for_guarded(s)) return false;
    const int64_t n = chunk(s, match.n_tokens, plan, budget);
    if (n == 0) return false;
    if (s.n_preemptions == 0) s.n_cached = match.n_tokens;
    (s.n_preemptions == 0 ? totals_.n_prefix_hit_tokens : totals_.n_recovered_tokens) += match.n_tokens;
    s.table.take(known, match);
    s.table.reserve(s.n_tokens()); // so that its prefill needs no room later
    s.n_computed = match.n_tokens;
    std::erase(waiting_, &s);
    s.queue = SequenceQueue::running;
    running_.push_back(&s);
    plan.admitted.push_back(s.id);
    add_item(s, n, plan, budget);
    return true;
}

// Whether a running sequence is about to compute the first block that the prefix lacks: waiting for it is cheaper.
bool Scheduler::prefix_in_flight(std::span<const PrefixHash> known, const PrefixMatch &match,
                                 int64_t max_tokens) const {
    const auto next = static_cast<size_t>(match.n_blocks);
    const int64_t end = match.n_tokens + pool_->block_tokens();
    if (next >= known.size() || end > max_tokens) return false;
    return std::ranges::any_of(running_, [&](Sequence *s) {
        return s->has_work() && s->n_computed < end && s->n_tokens() >= end && hashes(*s)[next] == known[next];
    });
}

bool Scheduler::room_for_guarded(const Sequence &candidate) const {
    int64_t n_blocks = pool_->blocks_for_tokens(candidate.max_computed());
    for (const Sequence *s : running_)
        if (is_guarded(*s)) n_blocks += pool_->blocks_for_tokens(s->max_computed());
    return n_blocks <= pool_->n_usable();
}

void Scheduler::require_current(const Plan &plan) const {
    if (plan.number != n_plans_)
        throw InternalError(
            "scheduler", cat("a plan must be used before anything else happens but plan ", plan.number, " is stale"));
}

void Scheduler::commit(const Plan &plan) {
    require_current(plan);
    ++n_plans_;
    for (const PlanItem &item : plan.items) {
        Sequence &s = *item.sequence;
        s.n_computed += item.n_tokens;
        s.next_logit = std::max(s.next_logit, s.n_computed);
        totals_.n_computed_tokens += item.n_tokens;
        ranks_.charge(s.key, item.n_tokens);
        s.table.publish(s.chain.of(std::span(s.tokens).first(static_cast<size_t>(s.n_computed))));
        if (!s.followers.empty() && s.n_computed >= s.n_prompt) start_followers(s);
    }
}

void Scheduler::start_followers(Sequence &leader) {
    for (Sequence *s : std::exchange(leader.followers, {})) {
        s->leader = nullptr;
        s->next_logit = leader.next_logit; // the leader's row serves all
        s->n_cached = leader.n_cached;
        if (running_.size() < static_cast<size_t>(config_.max_running)) {
            s->table = leader.table.fork();
            s->n_computed = leader.n_computed;
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
        throw InternalError("scheduler", cat("a token must follow its row of logits but sequence ",
                                             static_cast<uint64_t>(id), " has not had it"));
    if (s.n_tokens() >= s.max_tokens)
        throw InternalError("scheduler", cat("a sequence must end at ", s.max_tokens, " tokens but ",
                                             static_cast<uint64_t>(id), " goes on"));
    s.tokens.push_back(token);
}

void Scheduler::remove(SequenceId id) {
    Sequence &s = find(id);
    ++n_plans_;
    s.table.release();
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
    stats.n_running = static_cast<int64_t>(running_.size());
    stats.n_following = static_cast<int64_t>(sequences_.size() - waiting_.size() - running_.size());
    return stats;
}

void Scheduler::check() const {
    const auto require = [](bool holds, const char *invariant, const Sequence &s) {
        if (!holds)
            throw InternalError("scheduler", cat(invariant, " but that is not so for ", static_cast<uint64_t>(s.id)));
    };
    pool_->check();
    std::vector<int32_t> n_references(static_cast<size_t>(pool_->n_blocks()));
    for (const auto &[id, owned] : sequences_) {
        const Sequence &s = *owned;
        const auto n_queues = std::ranges::count(waiting_, &s) + std::ranges::count(running_, &s) +
                              (s.leader ? std::ranges::count(s.leader->followers, &s) : 0);
        require(n_queues == 1, "a sequence must be in exactly one queue", s);
        require((s.queue == SequenceQueue::following) == (s.leader != nullptr), "a follower must have a leader", s);
        require(s.queue == SequenceQueue::running || (s.table.n_blocks() == 0 && s.n_computed == 0),
                "only a running sequence may hold blocks", s);
        require(s.n_computed <= int64_t{s.table.n_blocks()} * pool_->block_tokens(), "a table must cover its tokens",
                s);
        require(s.n_computed <= s.n_tokens() && s.n_tokens() <= s.max_tokens, "a sequence must keep its length", s);
        require(s.n_preemptions <= config_.max_preemptions, "preemptions must be bounded", s);
        for (BlockId block : s.table.blocks()) ++n_references[static_cast<size_t>(index(block))];
    }
    for (int32_t id = 1; id < pool_->n_blocks(); ++id)
        if (pool_->n_references(BlockId{id}) != n_references[static_cast<size_t>(id)])
            throw InternalError("scheduler", cat("references must be those of the tables but block ", id, " has ",
                                                 pool_->n_references(BlockId{id}), " and the tables ",
                                                 n_references[static_cast<size_t>(id)]));
}

} // namespace quire
