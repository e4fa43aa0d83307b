// The parts of the scheduler that make a plan.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/scheduling/scheduler.h"

namespace quire {
namespace {

// Rows of logits that computing [first, first + n) gives the sequence.
int64_t logit_rows(const Sequence &s, int64_t first, int64_t n) {
    return std::max<int64_t>(0, first + n - std::max(first, s.next_logit));
}

constexpr size_t most_loaded_bytes = size_t{32} << 20; // in one plan: copying them takes time from others

} // namespace

void Scheduler::Budget::hold(const Sequence &decoding, int sign) {
    if (!decoding.has_work() || !decoding.is_decoding()) return;
    held_rows += sign;
    held_kv_tokens += sign * std::max(decoding.n_tokens(), decoding.n_source());
}

// The prompt tokens that a key may still take in this step, for a sequence whose next `until_logits` tokens have no row
// of logits.
int64_t Scheduler::Budget::left_of_key(const Sequence &s, int64_t until_logits) const {
    const auto taken = [&](const KeyCounts &counts) {
        const auto found = counts.find(s.key);
        return found == counts.end() ? 0 : found->second;
    };
    return std::min(*tokens_of_key - taken(tokens_taken), until_logits + *rows_of_key - taken(rows_taken));
}

Plan Scheduler::plan(double now_s) { return plan_within(now_s, config_.max_step_tokens); }

Plan Scheduler::plan_within(double now_s, int step_tokens) {
    Plan plan;
    plan.number = ++n_plans_;
    ranks_.advance_to(now_s);
    const bool whole_texts = undivided() || pool_->has_source(); // texts of any length
    const int n_tokens =
        whole_texts ? config_.max_step_tokens : std::clamp(step_tokens, config_.max_running, config_.max_step_tokens);
    Budget budget{n_tokens, config_.max_step_logit_rows,
                  config_.max_step_kv_tokens.value_or(std::numeric_limits<int64_t>::max())};
    load_bytes_left_ = most_loaded_bytes;
    media_turn_ = std::exchange(media_waits_, std::nullopt);
    order_running();
    yield_place(plan);
    run_running(plan, budget);
    if (plan.preempted.empty()) admit_waiting(plan, budget);
    plan.edits = pool_->take_edits();
    return plan;
}

void Scheduler::order_running() {
    const RankedSequences ranked = ranks_.ranked(running_, config_.max_preemptions, {});
    std::ranges::transform(ranked, running_.begin(), &RankedSequences::value_type::second);
}

void Scheduler::run_running(Plan &plan, Budget &budget) {
    for (const Sequence *s : running_) budget.hold(*s, +1);
    share_step(budget);
    size_t i = 0;
    if (media_turn_) {
        const auto turn = std::ranges::find_if(running_, [this](const Sequence *s) { return is_media_turn(*s); });
        if (turn != running_.end())
            std::rotate(running_.begin(), turn, turn + 1); // in front, so that no other preempts it
        else if (admit_for_media(plan, budget))
            i = 1;
    }
    while (i < running_.size() && run_one(*running_[i], plan, budget)) ++i; // preemption shortens it from the end
}

// False: the sequence came last, and was preempted.
bool Scheduler::run_one(Sequence &s, Plan &plan, Budget &budget) {
    budget.hold(s, -1);
    const int64_t n = s.has_work() ? chunk(s, s.n_computed, plan, budget) : 0;
    if (n > 0 && !make_room(s, n, plan, budget)) return false;
    if (n > 0) add_item(s, n, draft_room(s, n, budget), plan, budget);
    return true;
}

// Admits the waiting sequence whose turn it is, in front of the running ones.  False: it was not admitted.
bool Scheduler::admit_for_media(Plan &plan, Budget &budget) {
    const auto turn = std::ranges::find_if(waiting_, [this](const Sequence *s) { return is_media_turn(*s); });
    if (turn == waiting_.end() || !(*turn)->may_run()) return false;
    if (running_.size() >= static_cast<size_t>(config_.max_running)) return false;
    admit(**turn, plan, budget);
    if (plan.admitted.empty()) return false;
    std::rotate(running_.begin(), running_.end() - 1, running_.end());
    return true;
}

int64_t Scheduler::chunk(const Sequence &s, int64_t n_computed, const Plan &plan, const Budget &budget) {
    const int64_t held_kv = plan.items.empty() ? 0 : budget.held_kv_tokens; // the first one advances in any case
    const int64_t held_rows = is_media_turn(s) ? 0 : budget.held_rows;
    const int64_t rows = budget.logit_rows - held_rows;
    const int64_t until_logits = std::max<int64_t>(0, s.next_logit - n_computed);
    const int64_t left = s.n_tokens() - n_computed;
    const int64_t kv_left = budget.kv_tokens - held_kv;
    if (kv_left < s.n_source()) return 0;
    const int64_t most = std::min({left, until_logits + rows, kv_left - n_computed});
    int64_t n = std::min(most, budget.tokens - held_rows - s.n_unencoded());
    if (undivided()) return n < left ? 0 : n;
    if (left > 1 && budget.tokens_of_key) n = std::min(n, budget.left_of_key(s, until_logits));
    n = std::max<int64_t>(0, std::min(n, next_snapshot(s, n_computed) - n_computed));
    const int64_t n_free = config_.max_step_tokens - plan.n_tokens - held_rows - s.n_unencoded();
    return with_whole_media(s, n_computed, n, std::min(most, n_free));
}

// n, changed so that no image is divided whose rows attend to each other: the text before it, or all of it if that is
// at most `limit`.
int64_t Scheduler::with_whole_media(const Sequence &s, int64_t n_computed, int64_t n, int64_t limit) {
    if (!s.media || !pool_->has_bidirectional_media()) return n;
    const MediaSpan *span = s.media->bidirectional_at(n_computed + n);
    if (!span || (n > 0 && span->begin == n_computed + n)) return n;
    if (span->begin > n_computed) return span->begin - n_computed;
    const int64_t rest = span->end() - n_computed;
    if (n > 0 && rest <= limit) return rest;
    if (!media_waits_) media_waits_ = s.id;
    return 0;
}

// The next position after n_computed where the last whole block of a message ends, or of an image, the prompt, or all
// that is known.
int64_t Scheduler::next_message_end(const Sequence &s, int64_t n_computed) const {
    const int64_t block = pool_->block_tokens();
    int64_t next = std::numeric_limits<int64_t>::max();
    for (int64_t position : {s.n_prompt - 1, s.n_tokens() - 1}) // at least one token is left to compute after a hit
        if (position / block * block > n_computed) next = std::min(next, position / block * block);
    const auto message = std::ranges::lower_bound(s.snapshot_positions, (n_computed / block + 1) * block);
    return message == s.snapshot_positions.end() ? next : std::min(next, *message / block * block);
}

// The first position after n_computed where the state of the sequence is to be kept.
int64_t Scheduler::next_snapshot(const Sequence &s, int64_t n_computed) const {
    if (!pool_->has_states()) return std::numeric_limits<int64_t>::max();
    return std::min((n_computed / snapshot_distance() + 1) * snapshot_distance(), next_message_end(s, n_computed));
}

// Free blocks for n more tokens, at the cost of those that come last.  False: the sequence itself came last.
bool Scheduler::make_room(Sequence &s, int64_t n, Plan &plan, Budget &budget) {
    while (!s.cache.has_room_to_write(s.n_computed, s.n_computed + n)) {
        Sequence &victim = *running_.back();
        if ((running_.size() == 1 || is_guarded(victim)) && pins_.give_way()) continue;
        if (is_guarded(victim))
            throw InternalError("scheduler",
                                cat("no block for sequence ", static_cast<uint64_t>(s.id), ": all others are guarded"));
        if (&victim != &s) budget.hold(victim, -1);
        running_.pop_back();
        preempt(victim);
        plan.preempted.push_back(victim.id);
        if (&victim == &s) return false;
    }
    return true;
}

// Releases what a running sequence holds, so that it can wait.  It has left its queue already.
void Scheduler::vacate(Sequence &s) {
    s.cache.release();
    if (s.n_unverified == 0) s.drafted.clear(); // otherwise their rows of logits are there already
    s.n_once_computed = std::max(s.n_once_computed, s.n_computed);
    s.n_computed = 0;
    s.is_encoded = false;
    s.queue = SequenceQueue::waiting;
    s.forget_fetch();
    waiting_.push_back(&s);
}

void Scheduler::preempt(Sequence &s) {
    vacate(s);
    ++s.n_preemptions;
    ++totals_.n_preemptions;
}

void Scheduler::add_item(Sequence &s, int64_t n, int64_t n_drafted, Plan &plan, Budget &budget) {
    s.drafted.resize(static_cast<size_t>(n_drafted));
    n += n_drafted;
    const int64_t end = s.n_computed + n;
    s.cache.prepare(s.n_computed, end);
    n_drafted > 0 ? s.cache.keep_state() : s.cache.drop_kept_state();
    const int64_t rows = logit_rows(s, s.n_computed, n);
    const auto n_encoded = static_cast<int32_t>(s.n_unencoded());
    plan.items.push_back({s.id, &s, s.n_computed, static_cast<int32_t>(n), static_cast<int32_t>(rows),
                          static_cast<int32_t>(n_drafted), n_encoded});
    plan.n_tokens += static_cast<int32_t>(n) + n_encoded;
    plan.n_logit_rows += static_cast<int32_t>(rows);
    if (budget.tokens_of_key && n > 1) {
        budget.tokens_taken[s.key] += n;
        budget.rows_taken[s.key] += rows;
    }
    // An image may take more than its share; what is held for others stays, as far as there is room.
    budget.tokens = std::min(std::max(budget.tokens - n - n_encoded, budget.held_rows),
                             int64_t{config_.max_step_tokens} - plan.n_tokens);
    budget.logit_rows -= rows;
    budget.kv_tokens -= std::max(end, s.n_source());
}

void Scheduler::admit_waiting(Plan &plan, Budget &budget) {
    if (running_.size() >= static_cast<size_t>(config_.max_running)) return;
    for (const auto &[rank, s] : ranks_.ranked(waiting_, config_.max_preemptions, n_running_of_keys())) {
        if (budget.tokens <= 0 || running_.size() >= static_cast<size_t>(config_.max_running)) return;
        if (!admit(*s, plan, budget)) return; // nobody overtakes, or a long one would wait for ever
    }
}

// True where the sequence was admitted, or had better wait a step while others go on.
bool Scheduler::admit(Sequence &s, Plan &plan, Budget &budget) {
    const auto known = hashes(s);
    const SequenceCache::Names names{known, s.names_of_source.blocks};
    CacheMatch match = s.cache.match(names, s.next_logit);
    if (prefix_in_flight(known, match.n_tokens, s.next_logit)) return true;
    const bool first = running_.empty();
    const int kept_back = first ? 0 : config_.kept_back_blocks.value_or(static_cast<int>(running_.size()));
    if (tiers_ && !ask_tiers(s, match)) return true;
    while (!s.cache.has_room_for(names, match, s.n_tokens(), kept_back)) {
        if (!first || !pins_.give_way()) return false;
        match = s.cache.match(names, s.next_logit); // which blocks are free has changed
    }
    if (s.fetch) {
        if (!take_from_tiers(s, match, plan)) return true;
        if (!s.cache.has_room_for(names, match, s.n_tokens(), kept_back)) return false;
    }
    if (is_guarded(s) && !room_for_guarded(s)) return false;
    s.is_encoded = match.has_source;
    const int64_t n = chunk(s, match.n_tokens, plan, budget);
    if (n <= 0) {
        s.is_encoded = false;
        return false;
    }
    const int64_t n_found = match.n_tokens + (match.has_source ? s.n_source() : 0);
    if (!s.was_preempted()) s.n_cached = n_found;
    (s.was_preempted() ? totals_.n_recovered_tokens : totals_.n_prefix_hit_tokens) += n_found;
    totals_.n_lost_hit_tokens += match.n_lost_tokens;
    if (tiers_) count_tier_tokens(s, n_found);
    s.cache.take(names, match, s.n_tokens()); // and all blocks, so that its prefill needs no room later
    s.n_computed = s.n_found = match.n_tokens;
    s.n_encoded_again = s.was_preempted() ? s.n_unencoded() : 0;
    s.n_turns = 0;
    ranks_.served(s.key);
    std::erase(waiting_, &s);
    s.queue = SequenceQueue::running;
    running_.push_back(&s);
    plan.admitted.push_back(s.id);
    add_item(s, n, draft_room(s, n, budget), plan, budget);
    return true;
}

// True if a running sequence is about to compute what would make the match longer: waiting for it is cheaper.
bool Scheduler::prefix_in_flight(std::span<const PrefixHash> known, int64_t n_matched, int64_t max_tokens) const {
    if (pool_->keeps_nothing()) return false;
    const int64_t block = pool_->block_tokens();
    max_tokens = std::min(max_tokens, static_cast<int64_t>(known.size()) * block);
    return std::ranges::any_of(running_, [&](Sequence *s) {
        if (!s->has_work()) return false;
        const int64_t end =
            pool_->has_states() ? next_snapshot(*s, std::max(s->n_computed, n_matched)) : n_matched + block;
        const auto last = static_cast<size_t>(end / block - 1);
        return end <= max_tokens && s->n_computed < end && s->n_tokens() >= end && hashes(*s)[last] == known[last];
    });
}

bool Scheduler::room_for_guarded(const Sequence &candidate) const {
    CacheNeed need = most_needed(candidate.max_computed(), candidate.n_source());
    for (const Sequence *s : running_)
        if (is_guarded(*s)) need += most_needed(s->max_computed(), s->n_source());
    return pool_->can_hold(need);
}

} // namespace quire
