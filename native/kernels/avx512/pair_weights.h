// Softmax weights of one query for the tokens of a step, rounded to BF16.
//
// Each instruction set's file includes this once; nothing here has external linkage.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/attention/attention_products.h"
#include "kernels/avx512/lanes.h"

namespace quire {
namespace {

// 2^x for x <= 0, as exact as BF16 allows: the relative error is below 9e-5, and 2^0 = 1.
[[gnu::always_inline]] inline __m512 rough_exponential2(__m512 x) {
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); // x - floor(x)
    __m512 p = _mm512_set1_ps(0.07706704F);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.22764499F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69511679F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
    return _mm512_scalef_ps(p, x);
}

// Replace the scores of tokens [begin, end), whole blocks, by their weights relative to `largest`, in half the space:
// each score is read before its place is written.  Return the sum.  Rounds::to_bf16(low, high) gives 32 BF16 numbers.
template <class Rounds>
[[gnu::always_inline]] inline float weigh_scores(float *scores, int begin, int end, float largest) {
    auto *weights = reinterpret_cast<uint16_t *>(scores);
    const __m512 most = _mm512_set1_ps(largest);
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int t = begin; t < end; t += block_tokens) {
        const __m512 low = rough_exponential2(_mm512_sub_ps(_mm512_loadu_ps(scores + t), most));
        const __m512 high = rough_exponential2(_mm512_sub_ps(_mm512_loadu_ps(scores + t + Lanes::width), most));
        const __m512i both = Rounds::to_bf16(low, high);
        _mm512_storeu_si512(weights + t, both);
        even = _mm512_add_ps(even, _mm512_castsi512_ps(_mm512_slli_epi32(both, 16)));
        const __m512i second = _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
        odd = _mm512_add_ps(odd, _mm512_castsi512_ps(second));
    }
    return Lanes::total(_mm512_add_ps(even, odd));
}

} // namespace
} // namespace quire
