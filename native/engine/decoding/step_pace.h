// Limits the tokens of a step so that it takes about a target time: cancelled requests wait for its end.
#pragma once

#include <algorithm>
#include <limits>
#include <optional>

namespace quire {

// Invariant: the tokens are between the least and the most.  Without a target they are always the most.
class StepPace {
  public:
    StepPace(std::optional<double> target_s, int least_tokens, int most_tokens)
        : target_s_(target_s), least_(std::min(least_tokens, most_tokens)), most_(most_tokens),
          tokens_(target_s ? least_ : most_) {}

    int tokens() const { return tokens_; }

    // Learns from a step of so many tokens.  Small steps tell nothing: their time is that of reading the weights.
    void took(int n_tokens, double seconds) {
        if (!target_s_ || n_tokens < least_) return;
        const double wanted = seconds > 0 ? n_tokens * *target_s_ / seconds : std::numeric_limits<int>::max();
        // At most twice as many as the last time: the first steps after a pause are not typical.
        const int grown = tokens_ > most_ / 2 ? most_ : 2 * tokens_;
        tokens_ = wanted >= grown ? grown : std::max(static_cast<int>(wanted), least_);
    }

  private:
    std::optional<double> target_s_;
    int least_, most_, tokens_;
};

} // namespace quire
