#include "engine/scheduling/scheduler_policy.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace quire {
namespace {

constexpr std::pair<SchedulingPolicy, const char *> policy_names[] = {
    {SchedulingPolicy::fifo, "fifo"},
    {SchedulingPolicy::shortest_first, "shortest-first"},
    {SchedulingPolicy::priority, "priority"},
    {SchedulingPolicy::dynamic, "dynamic"},
};

constexpr size_t most_remembered_keys = 4096; // keys whose turns are remembered
constexpr double most_turns = 2.0; // that priority is worth between keys

} // namespace

SchedulingPolicy scheduling_policy(const std::string &wanted) {
    std::string names;
    for (const auto &[policy, text] : policy_names) {
        if (wanted == text) return policy;
        names += (names.empty() ? "" : ", ") + std::string(text);
    }
    throw RequestError("scheduler", cat("policy is '", wanted, "': expected one of ", names));
}

std::string name(SchedulingPolicy policy) { return policy_names[static_cast<size_t>(policy)].second; }

RankedSequences PolicyRanks::ranked(const std::vector<Sequence *> &sequences, int max_preemptions,
                                    const KeyCounts &n_running) const {
    RankedSequences ranked;
    ranked.reserve(sequences.size());
    for (Sequence *s : sequences)
        if (s->queue == SequenceQueue::running || s->may_run()) ranked.emplace_back(rank(*s, max_preemptions), s);
    std::ranges::sort(ranked, {}, &RankedSequences::value_type::first);
    const auto is_first_key = [&](const auto &entry) { return entry.second->key == ranked.front().second->key; };
    if (!is_fair() || std::ranges::all_of(ranked, is_first_key)) return ranked;
    KeyCounts n_before = n_running;
    for (auto &[rank, s] : ranked) {
        rank.major = static_cast<double>(n_before[s->key]++);
        if (s->queue != SequenceQueue::running) rank.turn = turn(*s);
    }
    std::ranges::sort(ranked, {}, &RankedSequences::value_type::first);
    return ranked;
}

void PolicyRanks::served(const std::string &key) {
    if (!is_fair()) return;
    if (last_turns_.size() >= most_remembered_keys && !last_turns_.contains(key)) {
        const auto oldest = std::ranges::min_element(last_turns_, {}, [](const auto &entry) { return entry.second; });
        last_turns_.erase(oldest);
    }
    last_turns_[key] = ++n_turns_;
}

double PolicyRanks::turn(const Sequence &s) const {
    const auto found = last_turns_.find(s.key);
    const auto last = static_cast<double>(found == last_turns_.end() ? 0 : found->second);
    return last - std::clamp(static_cast<double>(s.priority) / weights_.turn_priority, -most_turns, most_turns);
}

// Guarded sequences that wait come first of their key only: what they need fits beside all other guarded ones, and a
// key must not get ahead of others by memory that it lost.
Rank PolicyRanks::rank(const Sequence &s, int max_preemptions) const {
    const bool is_guarded = s.n_preemptions >= max_preemptions;
    Rank rank{!is_guarded, 0.0, 0.0, !s.was_preempted(), 0.0, s.arrival_s, s.id};
    switch (policy_) {
    case SchedulingPolicy::fifo: break;
    case SchedulingPolicy::shortest_first: rank.minor = static_cast<double>(s.n_prompt); break;
    case SchedulingPolicy::priority: rank.major = -static_cast<double>(s.priority); break;
    case SchedulingPolicy::dynamic:
        rank.minor = weights_.token_s * static_cast<double>(s.n_pending()) - weights_.priority_s * s.priority -
                     (now_s_ - s.arrival_s);
    }
    if (s.queue == SequenceQueue::running) rank.fresh = 0; // running work ranks by the policy alone
    if (is_fair() && s.queue != SequenceQueue::running && is_guarded) {
        rank.unguarded = 1;
        rank.fresh = -1;
    }
    return rank;
}

} // namespace quire
