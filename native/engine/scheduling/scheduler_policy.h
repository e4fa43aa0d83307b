// The order in which sequences are served.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/scheduling/sequence.h"

namespace quire {

enum class SchedulingPolicy {
    fifo,           // by arrival
    shortest_first, // by length of prompt
    priority,       // by priority, then arrival
    dynamic,        // fair between keys; of one key by age, length and priority
};

SchedulingPolicy scheduling_policy(const std::string &name); // "shortest-first"; RequestError lists the names
std::string name(SchedulingPolicy policy);

// The dynamic policy's exchange rates.
struct DynamicWeights {
    double priority_s = 10.0;    // seconds of waiting that a level of priority is worth among the requests of one key
    double token_s = 0.001;      // seconds that a pending token is worth, against
    double turn_priority = 50.0; // levels of priority that are worth a turn before other keys
};

// Smaller comes first.
struct Rank {
    int unguarded; // guarded sequences come before all others
    double major;  // class
    double turn;   // its key's, within a class
    int fresh;     // those with lost work come before new ones
    double minor;
    double arrival_s;
    SequenceId id;
    auto operator<=>(const Rank &) const = default;
};

using RankedSequences = std::vector<std::pair<Rank, Sequence *>>;
using KeyCounts = std::unordered_map<std::string_view, int64_t>; // keys of sequences that are there

// Fairness under the dynamic policy: a key's first sequence comes before any key's second, that before any third, and
// so on.  Of keys that have equally many, the one that was served longest ago comes first.  Priority orders the
// sequences of a key; between keys it is worth two turns at most.
class PolicyRanks {
  public:
    PolicyRanks(SchedulingPolicy policy, DynamicWeights weights) : policy_(policy), weights_(weights) {}
    // The clock of every call is the caller's; it may stand still, and going back counts as standing still.
    void advance_to(double now_s) { now_s_ = std::max(now_s_, now_s); }
    bool is_fair() const { return policy_ == SchedulingPolicy::dynamic; }
    // Sequences of one queue in order.  `n_running`: of each key, where they wait.
    RankedSequences ranked(const std::vector<Sequence *> &sequences, int max_preemptions,
                           const KeyCounts &n_running) const;
    void served(const std::string &key); // a turn of the key begins: a sequence enters, or has had its turn and goes on
    double turn(const Sequence &sequence) const;

  private:
    Rank rank(const Sequence &sequence, int max_preemptions) const;
    SchedulingPolicy policy_;
    DynamicWeights weights_;
    double now_s_ = 0;
    int64_t n_turns_ = 0;
    std::unordered_map<std::string, int64_t> last_turns_; // by key, for keys that were served lately
};

} // namespace quire
