// Operations on the scores of one query for a step's tokens before the softmax: hiding, cap, bias, maximum.
//
// The numbers of 32 tokens are in the order of interleave() (column_pairs.h), as products leave them.
#pragma once

#include "kernels/attention/attention_tile.h"
#include "kernels/avx512/column_pairs.h"
#include "kernels/avx512/pair_weights.h"

namespace quire {
namespace {

// Scores of tokens in `tokens` but not in `seen` are ignored.  `tokens` are whole blocks.
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

// Adds the distance bias like add_bias() in attention_steps.h; `tokens` are whole blocks.
inline void add_block_bias(const TileQuery &query, int first, float *scores, Range tokens) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
    const __m512i last = _mm512_set1_epi32(query.bias.n - 1);
    for (int t = tokens.begin; t < tokens.end; t += block_tokens) {
        for (int half = 0; half < 2; ++half) {
            const __m512i column = _mm512_add_epi32(lane, _mm512_set1_epi32(t + 4 * half + first + query.first_column));
            const __m512i inside = _mm512_max_epi32(_mm512_setzero_si512(), _mm512_min_epi32(last, column));
            const __m512 bias = _mm512_i32gather_ps(inside, query.bias.columns, sizeof(float));
            float *some = scores + t + half * lanes;
            _mm512_storeu_ps(some, _mm512_add_ps(_mm512_loadu_ps(some), _mm512_mul_ps(bias, _mm512_set1_ps(log2_e))));
        }
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

} // namespace
} // namespace quire
