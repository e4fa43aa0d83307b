#include "engine/drafting/draft_depth.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

constexpr double memory = 0.9;           // decay of a bin's mean, per step
constexpr double outlier = 3.0;          // times the mean: the machine did something else
constexpr double unseen_row = 0.01;      // part of a step's time, for each row more than were seen
constexpr double least_advantage = 1.04; // a draft that promises less is not worth its risk

} // namespace

size_t StepCost::bin(int n_rows) {
    const auto above = std::ranges::upper_bound(knots, std::max(n_rows, 1));
    return static_cast<size_t>(above - knots.begin()) - 1;
}

void StepCost::took(int n_rows, double seconds, bool all_have_logits) {
    add((all_have_logits ? bins_ : prompt_bins_)[bin(n_rows)], n_rows, seconds);
}

void StepCost::add(Bin &bin, int n_rows, double seconds) {
    if (outlier * seconds < bin.seconds) bin = {}; // that was the machine, as when memory is touched first
    if (bin.n > 2) seconds = std::min(seconds, outlier * bin.seconds);
    const double weight = std::max(1 - memory, 1.0 / ++bin.n);
    bin.rows += weight * (n_rows - bin.rows);
    bin.seconds += weight * (seconds - bin.seconds);
    bin.n = std::min(bin.n, 1000);
}

double StepCost::seconds(int n_rows) const {
    double rows = 0, seconds = 0; // those of the last bin with fewer rows
    const auto last = std::find_if(bins_.rbegin(), bins_.rend(), [](const Bin &bin) { return bin.n > 0; });
    for (size_t i = 0; i < bins_.size(); ++i) {
        const bool is_beyond = i >= static_cast<size_t>(bins_.rend() - last);
        const Bin &bin = is_beyond ? prompt_bins_[i] : bins_[i];
        if (bin.n == 0) continue;
        const double here = std::max(bin.seconds, seconds);
        if (bin.rows >= n_rows) {
            if (rows == 0) return here;
            return seconds + (here - seconds) * (n_rows - rows) / (bin.rows - rows);
        }
        rows = bin.rows;
        seconds = here;
    }
    return seconds * (1 + unseen_row * (n_rows - rows));
}

void choose_depths(std::span<DraftOffer> offers, int n_tokens, int n_rows, const StepCost &cost) {
    struct Row {
        double gain;
        size_t offer;
    };
    std::vector<Row> rows;
    double gain = 0;
    for (size_t i = 0; i < offers.size(); ++i) {
        DraftOffer &offer = offers[i];
        offer.taken = std::min(offer.least, offer.n_tokens);
        n_rows += offer.taken;
        double chance = 1;
        for (int k = 0; k < offer.n_tokens; ++k) {
            chance *= k < offer.n_certain ? highest_rate : offer.rate;
            if (k < offer.taken)
                gain += chance;
            else
                rows.push_back({chance, i});
        }
    }
    std::ranges::stable_sort(rows, std::greater{}, &Row::gain);
    double best = (n_tokens + gain) / cost.seconds(n_rows) * least_advantage;
    size_t n_best = 0;
    for (size_t n = 0; n < rows.size();) {
        gain += rows[n++].gain;
        const double speed = (n_tokens + gain) / cost.seconds(n_rows + static_cast<int>(n));
        if (speed > best) best = speed, n_best = n;
    }
    for (size_t n = 0; n < n_best; ++n) ++offers[rows[n].offer].taken;
}

DepthChoice choose_depth(std::span<const double> rates, int most, int n_tokens, int n_rows, const StepCost &cost,
                         double draft_s) {
    std::vector<double> chances(rates.size(), 1.0);
    const double without = n_tokens / cost.seconds(n_rows);
    double gain = 0, best = without * least_advantage;
    DepthChoice choice;
    for (int k = 1; k <= most; ++k) {
        for (size_t i = 0; i < rates.size(); ++i) gain += chances[i] *= rates[i];
        const int n_drafted = k * static_cast<int>(rates.size());
        const double speed = (n_tokens + gain) / (cost.seconds(n_rows + n_drafted) + k * draft_s);
        if (speed > best) best = speed, choice = {k, speed / without};
    }
    return choice;
}

} // namespace quire
