#include "engine/sampling/row_scan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "engine/sampling/exponential.h"

// The loader picks one at run time.  Sums have fixed lanes and nothing is fused, so all give the same bits.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
#define QUIRE_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define QUIRE_VECTOR_CLONES
#endif

namespace quire {

QUIRE_VECTOR_CLONES bool find_largest(std::span<const float> row, float &largest) {
    const float *x = row.data();
    const size_t n = row.size();
    float lanes[scan_lanes];
    uint32_t bad[scan_lanes] = {};
    std::fill(lanes, lanes + scan_lanes, -INFINITY);
    size_t i = 0;
    for (; i + scan_lanes <= n; i += scan_lanes) {
        for (size_t j = 0; j < scan_lanes; ++j) {
            lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
            bad[j] |= !(x[i + j] <= largest_logit);
        }
    }
    for (; i < n; ++i) {
        lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
        bad[0] |= !(x[i] <= largest_logit);
    }
    uint32_t any_bad = 0;
    largest = -INFINITY;
    for (size_t j = 0; j < scan_lanes; ++j) {
        any_bad |= bad[j];
        largest = std::max(largest, lanes[j]);
    }
    return any_bad == 0;
}

QUIRE_VECTOR_CLONES size_t find_above(std::span<const float> row, size_t begin, float bound) {
    const float *x = row.data();
    const size_t n = row.size();
    size_t i = begin;
    for (; i + scan_lanes <= n; i += scan_lanes) {
        int above = 0;
        for (size_t j = 0; j < scan_lanes; ++j) above += x[i + j] > bound;
        if (above > 0) return i;
    }
    return i;
}

size_t find_above(std::span<const float> row, std::span<const float> maxima, size_t begin, float bound) {
    const size_t n = row.size();
    if (maxima.empty()) return find_above(row, begin, bound);
    while (begin < n) {
        size_t strip = begin / logit_strip;
        if (maxima[strip] > bound) {
            const size_t end = std::min(n, (strip + 1) * logit_strip);
            begin = find_above(row.first(end), begin, bound);
            if (begin < end) return begin;
        } else {
            ++strip;
            if (strip % scan_lanes == 0) strip = find_above(maxima, strip, bound);
            begin = strip * logit_strip;
        }
    }
    return n;
}

QUIRE_VECTOR_CLONES void exponentials(std::span<const float> row, float max, float factor, float *weights) {
    const float *x = row.data();
    const size_t n = row.size();
    for (size_t i = 0; i < n; ++i) weights[i] = exp_nonpositive((x[i] - max) * factor);
}

QUIRE_VECTOR_CLONES double sum_of_exponentials(std::span<const float> row, float max) {
    const float *x = row.data();
    double total = 0.0;
    for (size_t begin = 0; begin < row.size(); begin += scan_block) {
        const size_t end = std::min(begin + scan_block, row.size());
        float lanes[scan_lanes] = {};
        size_t i = begin;
        for (; i + scan_lanes <= end; i += scan_lanes)
            for (size_t j = 0; j < scan_lanes; ++j) lanes[j] += exp_nonpositive(x[i + j] - max);
        for (; i < end; ++i) lanes[0] += exp_nonpositive(x[i] - max);
        for (float lane : lanes) total += lane;
    }
    return total;
}

QUIRE_VECTOR_CLONES double sum_at_least(std::span<const float> weights, float bound, std::vector<double> *totals) {
    const float *x = weights.data();
    double total = 0.0;
    for (size_t begin = 0; begin < weights.size(); begin += scan_block) {
        const size_t end = std::min(begin + scan_block, weights.size());
        float lanes[scan_lanes] = {};
        size_t i = begin;
        for (; i + scan_lanes <= end; i += scan_lanes)
            for (size_t j = 0; j < scan_lanes; ++j) lanes[j] += x[i + j] >= bound ? x[i + j] : 0.0F;
        for (; i < end; ++i) lanes[0] += x[i] >= bound ? x[i] : 0.0F;
        double sum = 0.0;
        for (float lane : lanes) sum += lane;
        if (totals != nullptr) totals->push_back(sum);
        total += sum;
    }
    return total;
}

} // namespace quire
