// The parts of the scheduler that deal with drafted tokens.
//
// A recurrent state cannot be cut back as rows can.  So a copy of it is kept from before the step, and taken up where a
// drafted token was wrong: the tokens that were right are then computed again, beside the next draft.
#include <algorithm>

#include "core/error.h"
#include "engine/scheduling/scheduler.h"

namespace quire {
namespace {

// With a recurrent state: so many tokens are computed again at most before a step goes without a draft.
constexpr int64_t most_repeated = 8;

} // namespace

int64_t Scheduler::draft_limit(const Sequence &s) const {
    const bool may_run = s.queue == SequenceQueue::running || (s.queue == SequenceQueue::waiting && !s.was_preempted());
    if (!may_run || !s.has_work() || s.next_logit != s.n_tokens() - 1) return 0;
    if (!s.followers.empty() || undivided()) return 0;
    if (s.n_pending() > (pool_->has_states() ? most_repeated : config_.max_step_tokens)) return 0;
    return std::max<int64_t>(0, s.max_tokens - s.n_tokens() - 1); // a last token is not computed
}

void Scheduler::draft(SequenceId id, std::span<const int32_t> tokens) {
    Sequence &s = find(id);
    const int64_t limit = draft_limit(s);
    if (static_cast<int64_t>(tokens.size()) > limit)
        throw InternalError("scheduler", cat("a draft for sequence ", static_cast<uint64_t>(id), " has ", tokens.size(),
                                             " tokens: expected at most ", limit));
    if (limit > 0) s.drafted.assign(tokens.begin(), tokens.end());
}

// The part of its draft that fits behind n tokens without taking anything from sequences whose turn is still to come.
int64_t Scheduler::draft_room(const Sequence &s, int64_t n, const Budget &budget) const {
    if (s.drafted.empty() || n < s.n_pending() || draft_limit(s) == 0) return 0;
    const int64_t end = s.n_computed + n;
    int64_t room =
        std::min({static_cast<int64_t>(s.drafted.size()), budget.tokens - budget.held_rows - n - s.n_unencoded(),
                  budget.logit_rows - budget.held_rows - 1, budget.kv_tokens - budget.held_kv_tokens - end});
    const auto n_others = static_cast<int64_t>(running_.size());
    if (pool_->has_states()) {
        if (pool_->states().n_available() <= n_others && !s.cache.keeps_state()) return 0;
        room = std::min(room, (s.n_computed / pool_->block_tokens() + 1) * pool_->block_tokens() - end);
    }
    while (room > 0 && !s.cache.has_room_to_write(s.n_computed, end + room, n_others)) --room;
    return std::max<int64_t>(0, room);
}

void Scheduler::await_verdict(Sequence &s, const PlanItem &item) {
    s.n_unverified = item.n_drafted;
    s.draft_first = item.first;
    totals_.n_drafted_tokens += item.n_drafted;
}

// A preempted sequence has its rows of logits still, and computes the tokens again.
void Scheduler::take_verdict(Sequence &s, int32_t token) {
    if (token != s.drafted[s.drafted.size() - static_cast<size_t>(s.n_unverified)]) return settle(s);
    --s.n_unverified;
    ++s.next_logit;
    ++totals_.n_accepted_tokens;
    if (s.queue == SequenceQueue::running) {
        ++s.n_computed;
        ++totals_.n_computed_tokens;
    }
    if (s.n_unverified == 0) settle(s);
}

void Scheduler::rewrite(SequenceId id, std::span<const int32_t> tokens, int64_t n_kept) {
    Sequence &s = find(id);
    if (tokens.empty() || static_cast<int64_t>(tokens.size()) > s.max_tokens)
        throw RequestError("scheduler", cat("a text has ", tokens.size(), " tokens: expected 1 to ", s.max_tokens));
    if (pool_->has_states() || s.leader != nullptr || !s.followers.empty())
        throw UnsupportedError("scheduler", "cannot change a text that has recurrent states or other choices");
    ++n_plans_;
    const int64_t n_common = std::min<int64_t>(std::ranges::mismatch(s.tokens, tokens).in1 - s.tokens.begin(), n_kept);
    s.tokens.assign(tokens.begin(), tokens.end());
    s.chain.cut(n_common);
    s.next_logit = s.n_tokens() - 1;
    s.n_computed = std::min({s.n_computed, n_common, s.n_tokens() - 1});
    s.drafted.clear();
    s.n_unverified = 0;
    if (s.queue != SequenceQueue::running || s.cache.cut_back(s.n_computed)) return;
    // A window has passed what is needed now: all is computed again, from what can be found.
    s.cache.release();
    s.n_computed = 0;
    s.is_encoded = false;
    s.queue = SequenceQueue::waiting;
    std::erase(running_, &s);
    waiting_.push_back(&s);
}

void Scheduler::take_back(SequenceId id, int64_t n) {
    Sequence &s = find(id);
    if (n < 1 || s.n_tokens() - n < s.n_prompt || s.queue == SequenceQueue::following)
        throw InternalError("scheduler",
                            cat("sequence ", static_cast<uint64_t>(id), " cannot take back ", n, " tokens"));
    ++n_plans_;
    s.tokens.resize(static_cast<size_t>(s.n_tokens() - n));
    s.chain.cut(s.n_tokens());
    s.next_logit = s.n_tokens() - 1;
    s.n_unverified = 0;
    s.drafted.clear();
    if (s.queue == SequenceQueue::running) {
        std::erase(running_, &s);
        vacate(s);
        ++s.n_yields;
    }
    s.n_once_computed = std::min(s.n_once_computed, s.n_tokens());
}

// The draft is done with: n_unverified tokens of it were not right.
void Scheduler::settle(Sequence &s) {
    const bool all_right = s.n_unverified == 0;
    s.n_unverified = 0;
    s.drafted.clear();
    if (s.queue != SequenceQueue::running) return;
    if (all_right) s.cache.drop_kept_state();
    if (s.cache.restore_state())
        s.n_computed = s.draft_first;
    else
        advance(s);
    s.cache.cut(s.n_tokens());
}

} // namespace quire
