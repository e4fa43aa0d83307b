// Softmax weights of one query for the tokens of a step, rounded to BF16.
//
// Numbers of 32 tokens stand in the order of interleave() (column_pairs.h): where products leave them.
#pragma once

#include "kernels/attention_tile.h"
#include "kernels/avx512/column_pairs.h"

namespace quire {
namespace {

// 2^x for x <= 0, as good as BF16 can hold it: relative error below 9e-5, and 2^0 = 1.
[[gnu::always_inline]] inline __m512 rough_exponential2(__m512 x) {
    const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); // x less the integer below it
    __m512 p = _mm512_set1_ps(0.07706704F);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.22764499F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69511679F));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
    return _mm512_scalef_ps(p, x);
}

// Scores of tokens in `tokens` but not in `seen` count for nothing; `tokens` are whole blocks.
inline void hide_unseen(float *scores, Range tokens, Range seen) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const __m512 nothing = _mm512_set1_ps(-infinity);
    const __m512i begin = _mm512_set1_epi32(seen.begin), end = _mm512_set1_epi32(seen.end);
    for (int t = tokens.begin; t < tokens.end; t += block_tokens) {
        if (t >= seen.begin && t + block_tokens <= seen.end) continue;
        for (int half = 0; half < 2; ++half) {
            const __m512i token = _mm512_add_epi32(first, _mm512_set1_epi32(t + 4 * half));
            const auto hidden =
                static_cast<__mmask16>(_mm512_cmplt_epi32_mask(token, begin) | _mm512_cmpge_epi32_mask(token, end));
            _mm512_mask_storeu_ps(scores + t + half * lanes, hidden, nothing);
        }
    }
}

inline void cap_scores(float *scores, Range tokens, float soft_cap) {
    const __m512 cap = _mm512_set1_ps(soft_cap * log2_e), inverse = _mm512_set1_ps(1.0F / soft_cap);
    for (int t = tokens.begin; t < tokens.end; t += lanes) {
        const __m512 x = _mm512_mul_ps(inverse, _mm512_loadu_ps(scores + t));
        _mm512_storeu_ps(scores + t, _mm512_mul_ps(cap, hyperbolic_tangent<Lanes>(x)));
    }
}

[[gnu::always_inline]] inline float largest_score(const float *scores, Range tokens) {
    __m512 low = _mm512_loadu_ps(scores + tokens.begin), high = _mm512_loadu_ps(scores + tokens.begin + lanes);
    for (int t = tokens.begin + block_tokens; t < tokens.end; t += block_tokens) {
        low = _mm512_max_ps(low, _mm512_loadu_ps(scores + t));
        high = _mm512_max_ps(high, _mm512_loadu_ps(scores + t + lanes));
    }
    return Lanes::largest(_mm512_max_ps(low, high));
}

// Weights relative to `largest` take the first half of the place of the scores, which are read before they are written
// over.  Their sum.
template <class Tiles> [[gnu::always_inline]] inline float weigh_scores(float *scores, Range tokens, float largest) {
    auto *weights = reinterpret_cast<uint16_t *>(scores);
    const __m512 most = _mm512_set1_ps(largest);
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int t = tokens.begin; t < tokens.end; t += block_tokens) {
        const __m512 low = rough_exponential2(_mm512_sub_ps(_mm512_loadu_ps(scores + t), most));
        const __m512 high = rough_exponential2(_mm512_sub_ps(_mm512_loadu_ps(scores + t + lanes), most));
        const __m512i both = Tiles::to_bf16(low, high);
        _mm512_storeu_si512(weights + t, both);
        even = _mm512_add_ps(even, _mm512_castsi512_ps(_mm512_slli_epi32(both, 16)));
        const __m512i second = _mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
        odd = _mm512_add_ps(odd, _mm512_castsi512_ps(second));
    }
    return Lanes::total(_mm512_add_ps(even, odd));
}

} // namespace
} // namespace quire
