#include "engine/scheduler_policy.h"

#include <cmath>
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

} // namespace

SchedulingPolicy scheduling_policy(const std::string &wanted) {
    std::string names;
    for (const auto &[policy, text] : policy_names) {
        if (wanted == text) return policy;
        names += (names.empty() ? "" : ", ") + std::string(text);
    }
    throw RequestError("scheduler", cat("policy must be one of ", names, " but is '", wanted, "'"));
}

std::string name(SchedulingPolicy policy) { return policy_names[static_cast<size_t>(policy)].second; }

void PolicyRanks::advance_to(double now_s) {
    const double elapsed_s = now_s - now_s_;
    if (!(elapsed_s > 0)) return;
    now_s_ = now_s;
    const double factor = std::exp2(-elapsed_s / weights_.half_life_s);
    total_ = 0;
    for (auto it = served_.begin(); it != served_.end();) {
        it->second *= factor;
        if (it->second < 0.5) {
            it = served_.erase(it); // a key that is silent leaves no trace
        } else {
            total_ += it->second;
            ++it;
        }
    }
}

void PolicyRanks::charge(const std::string &key, int64_t n_tokens) {
    if (policy_ != SchedulingPolicy::dynamic) return;
    served_[key] += static_cast<double>(n_tokens);
    total_ += static_cast<double>(n_tokens);
}

double PolicyRanks::share(const std::string &key) const {
    const auto found = served_.find(key);
    return found == served_.end() ? 0.0 : found->second / total_;
}

Rank PolicyRanks::rank(const Sequence &s, int max_preemptions) const {
    Rank rank{s.n_preemptions < max_preemptions, 0.0, s.n_preemptions == 0, 0.0, s.arrival_s, s.id};
    switch (policy_) {
    case SchedulingPolicy::fifo: break;
    case SchedulingPolicy::shortest_first: rank.minor = static_cast<double>(s.n_prompt); break;
    case SchedulingPolicy::priority: rank.major = -static_cast<double>(s.priority); break;
    case SchedulingPolicy::dynamic:
        rank.minor = weights_.token_s * static_cast<double>(s.n_pending()) + weights_.share_s * share(s.key) -
                     weights_.priority_s * s.priority - (now_s_ - s.arrival_s);
    }
    if (s.queue == SequenceQueue::running) rank.fresh = 0; // running work ranks by the policy alone
    return rank;
}

} // namespace quire
