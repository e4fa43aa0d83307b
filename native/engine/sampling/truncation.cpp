#include "engine/sampling/truncation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace quire {
namespace {

// The last item of the smallest leading set that weighs at least `goal`, by partition like quickselect: linear time on
// average, nothing sorted.  The last of all where rounding leaves the sum short.
Ranked last_kept(std::vector<Ranked> &items, double goal) {
    size_t begin = 0, end = items.size();
    while (end - begin > 1) {
        const size_t middle = begin + (end - begin) / 2;
        const auto at = [&](size_t i) { return items.begin() + static_cast<ptrdiff_t>(i); };
        std::nth_element(at(begin), at(middle), at(end), comes_first);
        double weight = 0.0;
        for (size_t i = begin; i < middle; ++i) weight += items[i].weight;
        if (weight >= goal) {
            end = middle;
        } else {
            goal -= weight;
            begin = middle;
        }
    }
    return items[begin];
}

// True if fewer than n of the likeliest weigh `goal` already, or are all there are.
bool holds_within_fewer(Candidates &candidates, double goal, size_t n) {
    if (n < 2) return false;
    const std::span<const Candidate> likeliest = candidates.likeliest(n - 1);
    double weight = 0.0;
    for (const Candidate &item : likeliest) weight += std::exp(candidates.relative(item.logit));
    return weight >= goal || likeliest.size() < n - 1;
}

// The last item of the smallest leading set of at least n items that weighs `goal`.
Ranked last_kept(std::vector<Ranked> &items, double goal, size_t n) {
    if (n < 2) return last_kept(items, goal);
    const auto fixed = items.begin() + static_cast<ptrdiff_t>(std::min(n, items.size()) - 1);
    std::nth_element(items.begin(), fixed, items.end(), comes_first);
    double weight_before = 0.0;
    for (auto item = items.begin(); item != fixed; ++item) weight_before += item->weight;
    return weight_before >= goal || items.size() <= n ? *fixed : last_kept(items, goal);
}

} // namespace

void keep_top_n_sigma(Candidates &candidates, double n) {
    candidates.keep_within(n * candidates.standard_deviation() * candidates.factor());
}

void keep_top_p(Candidates &candidates, double p, size_t min_keep) {
    const double goal = p * candidates.total();
    if (holds_within_fewer(candidates, goal, min_keep)) return candidates.keep_top(min_keep);
    if (candidates.is_sorted()) {
        const std::span<const float> weight = candidates.weights();
        double sum = 0.0;
        size_t n = 0;
        while (n < weight.size() && sum < goal) sum += weight[n++];
        candidates.keep_first(std::max<size_t>(n, 1));
        return;
    }
    // Most often the nucleus lies near the maximum: look there first.
    for (double distance : {4.0, 8.0, 16.0, 32.0}) {
        if (candidates.weight_of_likely(distance) < goal) continue;
        candidates.keep_within(distance + 0.001); // a little more, for rounding
        break;
    }
    const Ranked last = last_kept(candidates.ranked([](const Candidate &item) { return -item.logit; }), goal);
    const Candidate least{static_cast<float>(-last.rank), last.id};
    candidates.filter([&](const Candidate &item, float) { return !likelier(least, item); });
}

void keep_min_p(Candidates &candidates, double fraction, size_t min_keep) {
    const double distance = -std::log(fraction);
    if (min_keep > 1 && candidates.likeliest(min_keep).back().logit < candidates.lowest_within(distance))
        return candidates.keep_top(min_keep);
    candidates.keep_within(distance);
}

void keep_typical(Candidates &candidates, double p, size_t min_keep) {
    const double entropy = candidates.entropy();
    const double log_total = std::log(candidates.total());
    const auto rank = [&](const Candidate &item) {
        return std::fabs(log_total - candidates.relative(item.logit) - entropy);
    };
    const double goal = p * candidates.total();
    const Ranked last = last_kept(candidates.ranked(rank), goal, min_keep);
    candidates.filter(
        [&](const Candidate &item, float weight) { return !comes_first(last, {rank(item), item.id, weight}); });
}

void keep_tail_free(Candidates &candidates, double z, size_t min_keep) {
    candidates.sort();
    const std::span<const float> w = candidates.weights();
    if (w.size() < 3) return;
    // Differences of weights: the total cancels when they are normalized to sum 1.
    const auto curvature = [&](size_t i) {
        return std::fabs((static_cast<double>(w[i]) - w[i + 1]) - (static_cast<double>(w[i + 1]) - w[i + 2]));
    };
    double total = 0.0;
    for (size_t i = 0; i + 2 < w.size(); ++i) total += curvature(i);
    if (total <= 0.0) return;
    double sum = 0.0;
    size_t n = 0; // leading curvatures whose running sum stays within z
    while (n + 2 < w.size() && (sum += curvature(n)) <= z * total) ++n;
    candidates.keep_first(std::max(n + 1, min_keep));
}

void exclude_top_choices(Candidates &candidates, double threshold, size_t min_keep) {
    const double bound = threshold * candidates.total();
    const std::span<const float> weight = candidates.weights();
    size_t n_top = 0;
    Candidate least{std::numeric_limits<float>::infinity(), -1};
    for (size_t i = 0; i < weight.size(); ++i) {
        const Candidate item = candidates.at(i);
        if (weight[i] < bound || item.logit == -INFINITY) continue;
        ++n_top;
        if (likelier(least, item)) least = item;
    }
    if (n_top < 2 || (min_keep > 1 && candidates.count() < min_keep + n_top - 1)) return;
    candidates.filter([&](const Candidate &item, float w) { return w < bound || item.id == least.id; });
}

} // namespace quire
