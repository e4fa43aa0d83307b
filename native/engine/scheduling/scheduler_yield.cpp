// The parts of the scheduler that keep it fair between keys, under the dynamic policy.
//
// A running sequence yields its place, and its blocks, to a key that waits where its own key would still have no fewer
// places than the other one, or where the other one has none at all and has waited for longer (then they take turns).
// Nobody yields to its own key, so with a single key nothing changes.
//
// It costs little: the blocks that a sequence leaves can be found again, and what cannot is computed again.  Before
// that it has its turn: turn_tokens new tokens, and more where its last return cost more.  So every turn moves on, of
// all computed tokens a bounded part is computed again, and whoever waits knows how long at most.
#include <algorithm>

#include "engine/scheduling/scheduler.h"

namespace quire {
namespace {

constexpr int64_t repeated_for_new = 8; // a token read again costs about an eighth of one that is written

} // namespace

KeyCounts Scheduler::n_running_of_keys() const {
    KeyCounts counts;
    if (ranks_.is_fair())
        for (const Sequence *s : running_) ++counts[s->key];
    return counts;
}

bool Scheduler::has_other_keys() const {
    if (!ranks_.is_fair() || running_.empty()) return false;
    const std::string &key = running_.front()->key;
    const auto is_other = [&](const Sequence *s) { return s->key != key; };
    return std::ranges::any_of(running_, is_other) ||
           std::ranges::any_of(waiting_, [&](const Sequence *s) { return s->may_run() && is_other(s); });
}

// Divides a step between the keys, if several have prompts to read.
void Scheduler::share_step(Budget &budget) const {
    if (undivided() || pool_->has_source() || !has_other_keys()) return;
    KeyCounts reading;
    for (const Sequence *s : running_)
        if (s->has_work() && !s->is_decoding()) ++reading[s->key];
    if (running_.size() < static_cast<size_t>(config_.max_running))
        for (const Sequence *s : waiting_)
            if (s->may_run()) ++reading[s->key];
    if (reading.size() < 2) return;
    const auto n = static_cast<int64_t>(reading.size());
    budget.tokens_of_key = std::max<int64_t>(1, (budget.tokens - budget.held_rows) / n);
    budget.rows_of_key = std::max<int64_t>(1, (budget.logit_rows - budget.held_rows) / n);
}

// The first waiting sequence, except those that are about to find more of their prompt in the cache or
// in the tiers below.
Sequence *Scheduler::first_waiting(const RankedSequences &waiting) {
    for (const auto &[rank, s] : waiting) {
        if (s->fetch) continue;
        const auto known = hashes(*s);
        const CacheMatch match = s->cache.match({known, s->names_of_source.blocks}, s->next_logit);
        if (!prefix_in_flight(known, match.n_tokens, s->next_logit)) return s;
    }
    return nullptr;
}

bool Scheduler::can_enter(Sequence &s) {
    if (running_.size() >= static_cast<size_t>(config_.max_running)) return false;
    const SequenceCache::Names names{hashes(s), s.names_of_source.blocks};
    const int kept_back = running_.empty() ? 0 : config_.kept_back_blocks.value_or(static_cast<int>(running_.size()));
    const CacheMatch match = s.cache.match(names, s.next_logit);
    return s.cache.has_room_for(names, match, s.n_tokens(), kept_back) && (!is_guarded(s) || room_for_guarded(s));
}

bool Scheduler::has_had_its_turn(const Sequence &s) const {
    return s.n_new() >= std::max<int64_t>(config_.turn_tokens, s.n_repeated() / repeated_for_new);
}

// The running sequence that yields its place to `first`, whose key has `n_of_key` places: the lowest-ranked one of the
// key with the most places, or null.
Sequence *Scheduler::yielding_to(const Sequence &first, double n_of_key) {
    const KeyCounts n_running = n_running_of_keys();
    Sequence *found = nullptr;
    int64_t n_most = 0;
    for (Sequence *s : running_) {
        if (s->key == first.key || !has_had_its_turn(*s)) continue;
        const int64_t n = n_running.at(s->key);
        const double n_left = static_cast<double>(n - 1);
        const bool is_turn = n_of_key == 0 && n_left == 0 && ranks_.turn(first) < ranks_.turn(*s);
        if (n < n_most || (n_left <= n_of_key && !is_turn)) continue;
        found = s;
        n_most = n;
    }
    return found;
}

// At most one sequence yields per step: what the next one costs is only known once this place is taken.
void Scheduler::yield_place(Plan &plan) {
    if (!has_other_keys()) return;
    const KeyCounts n_running = n_running_of_keys();
    const RankedSequences waiting = ranks_.ranked(waiting_, config_.max_preemptions, n_running);
    Sequence *const first = first_waiting(waiting);
    if (!first || can_enter(*first)) return;
    const auto places = n_running.find(first->key);
    Sequence *const s = yielding_to(*first, places == n_running.end() ? 0.0 : static_cast<double>(places->second));
    if (!s) return;
    std::erase(running_, s);
    vacate(*s);
    ++s->n_yields;
    ++totals_.n_preemptions;
    ++totals_.n_yields;
    plan.yielded.push_back(s->id);
}

} // namespace quire
