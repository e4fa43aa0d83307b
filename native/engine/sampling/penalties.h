// Penalties on tokens that the text already has, and how often it has them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "engine/sampling/candidates.h"
#include "engine/sampling/sampling_params.h"
#include "engine/sampling/token_map.h"

namespace quire {

struct TokenCount {
    int32_t all = 0;       // in prompt and generated text
    int32_t generated = 0; // in generated text
};

// How often each token occurs among the last `window` tokens of a growing sequence.  update() looks at new tokens only,
// as long as the sequence extends the one of the last call.
class TokenCounts {
  public:
    explicit TokenCounts(std::optional<int32_t> window) : window_(window) {}
    const TokenMap<TokenCount> &update(std::span<const int32_t> tokens, int64_t n_prompt);
    void reset();

  private:
    std::optional<int32_t> window_;
    TokenMap<TokenCount> counts_;
    size_t begin_ = 0, end_ = 0; // counted are tokens [begin_, end_)
    int32_t last_ = -1;          // token end_ - 1
};

// Repetition: positive logits divided by the penalty, negative ones multiplied (Keskar et al. 2019), for tokens of
// prompt and generated text.  Presence: subtracted once; frequency: once per occurrence; both for generated text only
// (OpenAI's definition, as in vLLM).
void apply_penalties(Candidates &candidates, const TokenMap<TokenCount> &counts, const SamplingParams &params);

} // namespace quire
