// Adaptive-P: prefers tokens whose probability is near a target that follows the tokens drawn so far.
// Published by its authors as MrJackSpade/adaptive-p-docs and ggml-org/llama.cpp pull request 17927 (2025).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/sampling/candidates.h"
#include "engine/sampling/sampling_params.h"

namespace quire {

// Keeps the decayed mean of the probabilities that drawn tokens had before this stage.  The next tokens aim as far past
// the target as the mean lies on its other side.  At distance d of a token's probability from there, in widths of 0.3,
// its logit is -10 d^2 / (1 + d).
class AdaptiveControl {
  public:
    explicit AdaptiveControl(const SamplingParams &params);
    void transform(Candidates &candidates);
    // The draw, number n_generated of the answer.
    void observe(const Candidate &drawn, int64_t n_generated);
    void rewind(int64_t n_generated); // the answer has so many tokens again

  private:
    struct State {
        double sum, weight; // sums over drawn tokens, the older the less
    };
    double target_, decay_;
    State state_;
    std::vector<State> before_; // each generated token
    std::vector<std::pair<int32_t, double>> probabilities_; // in the last distribution, before it was changed
};

} // namespace quire
