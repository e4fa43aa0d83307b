// The softmax state of a query, and merging and writing it.
//
// Each instruction set's file includes this once, after its Lanes; nothing here has external linkage.
#pragma once

#include "kernels/attention/attention_kernels.h"
#include "kernels/vector_math.h"

namespace quire {
namespace {

constexpr float log2_e = 1.44269504F;

// The largest score (in units of ln 2), the sum of weights relative to it, and the weighted sum of values.
struct SoftmaxState {
    float *largest, *total, *sums;
};

// Merge a query's state of later tokens into its state of earlier ones.
template <class L> void merge_state(SoftmaxState into, const SoftmaxState &from, int n_sums) {
    const float largest = *from.largest > *into.largest ? *from.largest : *into.largest;
    const float before = L::first(exponential2<L>(L::set(*into.largest - largest)));
    const float after = L::first(exponential2<L>(L::set(*from.largest - largest)));
    *into.total = *into.total * before + *from.total * after;
    *into.largest = largest;
    for (int d = 0; d < n_sums; d += L::width) {
        const auto added = L::mul(L::load(from.sums + d), L::set(after));
        L::store(into.sums + d, L::fma(L::load(into.sums + d), L::set(before), added));
    }
}

template <class L> void write_result(const TileQuery &query, const SoftmaxState &state, int dim) {
    float total = *state.total, factor = 1.0F;
    if (query.sink != -infinity) {
        const float sink = query.sink * log2_e;
        const float largest = sink > *state.largest ? sink : *state.largest;
        factor = L::first(exponential2<L>(L::set(*state.largest - largest)));
        total = total * factor + L::first(exponential2<L>(L::set(sink - largest)));
    }
    for (int d = 0; d < dim; ++d) query.out[d] = state.sums[d] * factor / total;
}

} // namespace
} // namespace quire
