// DRY ("don't repeat yourself"): a penalty on tokens that would continue a repetition of the text.
// Published by its author as oobabooga/text-generation-webui pull request 5637 (2024).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/sampling/candidates.h"
#include "engine/sampling/sampling_params.h"
#include "engine/sampling/token_map.h"
#include "engine/sampling/vocab_info.h"

namespace quire {

// Where the end of the text, of length m >= allowed_length, occurred before, the token that followed there loses
// multiplier * base^(m - allowed_length).  A repetition does not reach across a *breaking* token: one in whose bytes an
// occurrence of a sequence breaker ends (it may have begun in tokens before).  Breaking tokens are never penalized.
class DryPenalty {
  public:
    DryPenalty(const SamplingParams &params, const VocabInfo &vocab);
    void apply(Candidates &candidates, std::span<const int32_t> tokens);
    void reset();

  private:
    void read(std::span<const int32_t> tokens);
    bool breaks(const std::string &bytes);
    void find_repetitions(std::span<const int32_t> tokens, size_t n_limit);

    const SamplingParams &params_;
    const VocabInfo &vocab_;
    size_t longest_breaker_ = 0;
    std::vector<uint8_t> breaking_; // [tokens read] whether the token is a breaking one
    std::string tail_;              // the last bytes of the text, enough for the longest breaker
    int32_t last_ = -1;
    std::vector<int32_t> prefix_; // scratch of the Z algorithm
    TokenMap<int32_t> lengths_;   // longest repetition that each token would continue
};

} // namespace quire
