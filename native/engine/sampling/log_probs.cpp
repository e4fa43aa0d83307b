#include "engine/sampling/log_probs.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "engine/sampling/candidates.h"
#include "engine/sampling/row_scan.h"

namespace quire {

double log_sum_exp(std::span<const float> logits) {
    const float max = checked_max(logits);
    if (max == -INFINITY) throw RequestError("log_probs", "all logits are -inf");
    return max + std::log(sum_of_exponentials(logits, max));
}

SampledToken log_probs_of(std::span<const float> logits, int32_t id, int32_t n_top) {
    if (id < 0 || static_cast<size_t>(id) >= logits.size())
        throw RequestError("log_probs", cat("id is ", id, ": expected less than ", logits.size()));
    if (n_top < 0) throw RequestError("log_probs", cat("n_top is ", n_top, ": expected 0 or more"));
    const double normalizer = log_sum_exp(logits);
    const auto logprob = [&](float logit) { return static_cast<float>(logit - normalizer); };
    SampledToken token{id, logprob(logits[static_cast<size_t>(id)]), {}};
    std::vector<Candidate> top;
    if (n_top > 0) select_top(logits, {}, static_cast<size_t>(n_top), top);
    for (const Candidate &item : top) token.top.emplace_back(item.id, logprob(item.logit));
    return token;
}

} // namespace quire
