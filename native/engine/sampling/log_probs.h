// Log-probabilities of tokens: the log-softmax of a row of logits as the model gave it, before penalties, temperature
// and truncation (what OpenAI's and vLLM's interfaces report).  Those after the chain are the sampler's.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace quire {

// A token with its log-probability and the `n_top` likeliest, likeliest first, equal ones by id.
struct SampledToken {
    int32_t id = 0;
    float logprob = 0.0f; // 0 where no log-probabilities were asked for
    std::vector<std::pair<int32_t, float>> top;
};

// log(sum(exp(logits))); RequestError for NaN, +inf, or nothing above -inf.
double log_sum_exp(std::span<const float> logits);
// The log-probabilities of `id` and of the likeliest tokens in one row.  For prompt_logprobs: row i of the prompt's
// logits with token i + 1 (the first token has none).
SampledToken log_probs_of(std::span<const float> logits, int32_t id, int32_t n_top);

} // namespace quire
