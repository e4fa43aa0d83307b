// Passes over a row of logits, 150k numbers and more: compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include "graph/trace/step_batch.h"

namespace quire {

inline constexpr float largest_logit = std::numeric_limits<float>::max(); // the largest finite one
inline constexpr size_t scan_lanes = 16; // enough for any vector width, so that all give the same bits
inline constexpr size_t scan_block = 256; // weights summed in single precision

// A row of logits, lent to one sampler at a time.
struct LogitRow {
    std::span<float> logits;
    std::span<float> maxima = {}; // as Executor::maxima(); empty: not known
};

// The largest into `largest`, -inf for an empty row; false when a number is NaN or +inf.
bool find_largest(std::span<const float> row, float &largest);
// The first multiple of scan_lanes from `begin` (one itself) where a number of the next scan_lanes is above `bound`;
// the last incomplete lanes are always found; row.size() behind them.
size_t find_above(std::span<const float> row, size_t begin, float bound);
// As above, but finds nothing where the maxima of strips, unless they are empty, say that nothing is there.
size_t find_above(std::span<const float> row, std::span<const float> maxima, size_t begin, float bound);
// weights[i] = e^((row[i] - max) * factor), for numbers of at most max.
void exponentials(std::span<const float> row, float max, float factor, float *weights);
// Sum of e^(row[i] - max).
double sum_of_exponentials(std::span<const float> row, float max);
// Sum of the weights that are at least `bound`: blocks in single precision, added in double, appended to `totals`
// unless that is null.
double sum_at_least(std::span<const float> weights, float bound, std::vector<double> *totals);

} // namespace quire
