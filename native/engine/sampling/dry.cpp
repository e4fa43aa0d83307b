#include "engine/sampling/dry.h"

#include <algorithm>
#include <cmath>

namespace quire {

DryPenalty::DryPenalty(const SamplingParams &params, const VocabInfo &vocab) : params_(params), vocab_(vocab) {
    for (const std::string &breaker : params.dry_sequence_breakers)
        longest_breaker_ = std::max(longest_breaker_, breaker.size());
}

void DryPenalty::reset() {
    breaking_.clear();
    tail_.clear();
    last_ = -1;
}

// True if a breaker ends within the new bytes, by which `tail_` has already been extended.
bool DryPenalty::breaks(const std::string &bytes) {
    for (const std::string &breaker : params_.dry_sequence_breakers) {
        if (tail_.size() < breaker.size()) continue;
        const size_t end_after = tail_.size() - bytes.size();
        const size_t from = end_after + 1 > breaker.size() ? end_after + 1 - breaker.size() : 0;
        if (tail_.find(breaker, from) != std::string::npos) return true;
    }
    return false;
}

void DryPenalty::read(std::span<const int32_t> tokens) {
    const size_t n_read = breaking_.size();
    if (tokens.size() < n_read || (n_read > 0 && tokens[n_read - 1] != last_)) reset();
    for (size_t i = breaking_.size(); i < tokens.size(); ++i) {
        const std::string &bytes = vocab_.token_bytes[static_cast<size_t>(tokens[i])];
        tail_ += bytes;
        breaking_.push_back(!bytes.empty() && breaks(bytes));
        if (tail_.size() > longest_breaker_) tail_.erase(0, tail_.size() - longest_breaker_);
    }
    if (!tokens.empty()) last_ = tokens.back();
}

void DryPenalty::find_repetitions(std::span<const int32_t> tokens, size_t n_limit) {
    // Z algorithm on the reversed text r: prefix_[i] = how far r[i..] agrees with r, in linear time.
    const size_t n = tokens.size();
    const auto r = [&](size_t i) { return tokens[n - 1 - i]; };
    prefix_.assign(n, 0);
    size_t left = 0, right = 0; // the agreement that reaches furthest
    for (size_t i = 1; i < n; ++i) {
        size_t length = i < right ? std::min<size_t>(right - i, static_cast<size_t>(prefix_[i - left])) : 0;
        while (i + length < n && r(i + length) == r(length)) ++length;
        if (i + length > right) left = i, right = i + length;
        prefix_[i] = static_cast<int32_t>(length);
        const int32_t repeated = static_cast<int32_t>(std::min(length, n_limit));
        if (repeated < params_.dry_allowed_length) continue;
        if (breaking_[breaking_.size() - i]) continue; // the token that followed, r(i - 1)
        int32_t &longest = lengths_[r(i - 1)];
        longest = std::max(longest, repeated);
    }
}

void DryPenalty::apply(Candidates &candidates, std::span<const int32_t> tokens) {
    read(tokens);
    const size_t window = params_.dry_penalty_last_n ? static_cast<size_t>(*params_.dry_penalty_last_n) : tokens.size();
    if (tokens.size() > window) tokens = tokens.last(window);
    const auto last_break = std::find(breaking_.rbegin(), breaking_.rend(), 1);
    lengths_.clear();
    find_repetitions(tokens, static_cast<size_t>(last_break - breaking_.rbegin()));
    if (lengths_.empty()) return;
    candidates.change(lengths_, [&](float logit, int32_t length) {
        const double power = std::pow(static_cast<double>(params_.dry_base), length - params_.dry_allowed_length);
        return static_cast<float>(
            std::max(logit - params_.dry_multiplier * power, -static_cast<double>(largest_logit)));
    });
}

} // namespace quire
