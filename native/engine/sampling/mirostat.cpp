#include "engine/sampling/mirostat.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace quire {
namespace {

constexpr size_t n_estimate = 100; // tokens from which the exponent is estimated

} // namespace

// Version 1's k.
double MirostatControl::n_kept(const Candidates &candidates, std::span<const Candidate> likeliest) const {
    double products = 0.0, squares = 0.0; // least squares of b_i = s t_i
    for (size_t i = 0; i + 1 < likeliest.size(); ++i) {
        const double t = std::log((static_cast<double>(i) + 2.0) / (static_cast<double>(i) + 1.0));
        const double b = candidates.relative(likeliest[i].logit) - candidates.relative(likeliest[i + 1].logit);
        products += t * b;
        squares += t * t;
    }
    if (squares == 0.0) return 1.0;
    const double s = products / squares;
    if (s < 1e-9) return static_cast<double>(candidates.size()); // flat: no rank is less likely than another
    const double epsilon = s - 1.0;
    const double log_n = std::log(static_cast<double>(n_vocab_));
    // epsilon / (1 - N^-epsilon), which tends to 1 / ln N.
    const double slope = std::fabs(epsilon) < 1e-9 ? 1.0 / log_n : epsilon / -std::expm1(-epsilon * log_n);
    return std::pow(slope * std::exp2(mu_), 1.0 / s);
}

void MirostatControl::truncate(Candidates &candidates) {
    log_total_ = std::log(candidates.total());
    if (version_ == 2) {
        // -log2 p <= mu, with log p = relative - log total
        candidates.keep_within(std::max(0.0, mu_ * std::numbers::ln2 - log_total_));
        return;
    }
    const double n = std::max(1.0, std::floor(n_kept(candidates, candidates.likeliest(n_estimate + 1))));
    if (n < static_cast<double>(candidates.size())) candidates.keep_top(static_cast<size_t>(n));
}

void MirostatControl::observe(const Candidates &candidates, const Candidate &drawn, int64_t n_generated) {
    mu_before_.resize(static_cast<size_t>(n_generated), mu_);
    mu_before_.push_back(mu_);
    const double surprise = (log_total_ - candidates.relative(drawn.logit)) / std::numbers::ln2;
    mu_ -= eta_ * (surprise - tau_);
}

void MirostatControl::rewind(int64_t n_generated) {
    if (static_cast<size_t>(n_generated) < mu_before_.size()) mu_ = mu_before_[static_cast<size_t>(n_generated)];
}

} // namespace quire
