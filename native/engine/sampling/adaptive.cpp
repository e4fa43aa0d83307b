#include "engine/sampling/adaptive.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

constexpr double width = 0.3, sharpness = 10.0;

} // namespace

AdaptiveControl::AdaptiveControl(const SamplingParams &params)
    : target_(params.adaptive_target.value_or(0.0f)), decay_(params.adaptive_decay),
      state_{target_ / (1.0 - decay_), 1.0 / (1.0 - decay_)} {} // as if the target had been met all along

void AdaptiveControl::transform(Candidates &candidates) {
    const double aim = std::clamp(2.0 * target_ - state_.sum / state_.weight, 0.0, 1.0);
    const double total = candidates.total();
    probabilities_.clear();
    candidates.replace([&](const Candidate &item, float weight) {
        const double p = weight / total, distance = std::fabs(p - aim) / width;
        probabilities_.emplace_back(item.id, p);
        return static_cast<float>(-sharpness * distance * distance / (1.0 + distance));
    });
}

void AdaptiveControl::observe(const Candidate &drawn, int64_t n_generated) {
    before_.resize(static_cast<size_t>(n_generated), state_);
    before_.push_back(state_);
    const auto found = std::ranges::find(probabilities_, drawn.id, [](const auto &entry) { return entry.first; });
    if (found != probabilities_.end()) state_ = {found->second + decay_ * state_.sum, 1.0 + decay_ * state_.weight};
}

void AdaptiveControl::rewind(int64_t n_generated) {
    if (static_cast<size_t>(n_generated) < before_.size()) state_ = before_[static_cast<size_t>(n_generated)];
}

} // namespace quire
