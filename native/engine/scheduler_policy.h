// Who comes first.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "engine/sequence.h"

namespace quire {

enum class SchedulingPolicy {
    fifo,           // by arrival
    shortest_first, // by length of prompt
    priority,       // by priority, then arrival
    dynamic,        // by age, length, priority and the key's share of late
};

SchedulingPolicy scheduling_policy(const std::string &name); // "shortest-first"; RequestError lists the names
std::string name(SchedulingPolicy policy);

// The dynamic policy's exchange rates: how many seconds of waiting each thing is worth.
struct DynamicWeights {
    double priority_s = 10.0;  // one level of priority
    double token_s = 0.001;    // one pending token, against
    double share_s = 10.0;     // having had all of the computation of late, against
    double half_life_s = 30.0; // of what "of late" means
};

// Smaller comes first.
struct Rank {
    int unguarded; // guarded sequences come before all others
    double major;  // class
    int fresh;     // within a class, those with lost work come before new ones
    double minor;
    double arrival_s;
    SequenceId id;
    auto operator<=>(const Rank &) const = default;
};

class PolicyRanks {
  public:
    PolicyRanks(SchedulingPolicy policy, DynamicWeights weights) : policy_(policy), weights_(weights) {}
    // The clock of every call is the caller's; it may stand still, and going back counts as standing still.
    void advance_to(double now_s);
    void charge(const std::string &key, int64_t n_tokens); // computed for the key
    Rank rank(const Sequence &sequence, int max_preemptions) const;

  private:
    double share(const std::string &key) const; // 0 to 1
    SchedulingPolicy policy_;
    DynamicWeights weights_;
    double now_s_ = 0;
    double total_ = 0;
    std::map<std::string, double> served_; // tokens, decayed
};

} // namespace quire
