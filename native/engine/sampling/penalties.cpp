#include "engine/sampling/penalties.h"

namespace quire {

const TokenMap<TokenCount> &TokenCounts::update(std::span<const int32_t> tokens, int64_t n_prompt) {
    if (tokens.size() < end_ || (end_ > 0 && tokens[end_ - 1] != last_)) reset();
    const size_t n = tokens.size();
    const size_t begin = window_ && static_cast<size_t>(*window_) < n ? n - static_cast<size_t>(*window_) : 0;
    if (begin > end_) reset(), begin_ = end_ = begin;
    const auto add = [&](size_t i, int32_t step) {
        TokenCount &count = counts_[tokens[i]];
        count.all += step;
        if (static_cast<int64_t>(i) >= n_prompt) count.generated += step;
    };
    for (; end_ < n; ++end_) add(end_, 1);
    for (; begin_ < begin; ++begin_) add(begin_, -1);
    last_ = n > 0 ? tokens[n - 1] : -1;
    return counts_;
}

void TokenCounts::reset() {
    counts_.clear();
    begin_ = end_ = 0;
    last_ = -1;
}

void apply_penalties(Candidates &candidates, const TokenMap<TokenCount> &counts, const SamplingParams &params) {
    candidates.change(counts, [&](float logit, const TokenCount &count) {
        if (count.all > 0) logit = logit > 0.0f ? logit / params.repetition_penalty : logit * params.repetition_penalty;
        if (count.generated > 0)
            logit -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count.generated);
        return logit;
    });
}

} // namespace quire
