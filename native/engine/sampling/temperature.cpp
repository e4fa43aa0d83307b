#include "engine/sampling/temperature.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

double dynamic_temperature(Candidates &candidates, const SamplingParams &params) {
    const double lowest = std::max(0.0, static_cast<double>(params.temperature) - params.dynatemp_range);
    const double highest = static_cast<double>(params.temperature) + params.dynatemp_range;
    const size_t n = candidates.count();
    if (n < 2) return params.temperature;
    const double part = std::min(1.0, candidates.entropy() / std::log(static_cast<double>(n)));
    return lowest + (highest - lowest) * std::pow(part, static_cast<double>(params.dynatemp_exponent));
}

} // namespace

void apply_temperature(Candidates &candidates, const SamplingParams &params) {
    const double temperature = params.dynatemp_range > 0.0f ? dynamic_temperature(candidates, params)
                                                            : static_cast<double>(params.temperature);
    if (temperature > 0.0)
        candidates.divide_by(temperature);
    else
        candidates.keep_top(1);
}

} // namespace quire
