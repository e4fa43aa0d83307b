// Interleaving of two rows of 32 BF16 numbers, as products of pairs need them.
//
// Each instruction set's file includes this once; nothing here has external linkage.
#pragma once

#include <immintrin.h>

namespace quire {
namespace {

constexpr int lanes = 16;

// Pair the numbers of `even` with those of `odd`: pairs 0-3, 8-11, 16-19, 24-27 in pairs[0], the others in pairs[1].
[[gnu::always_inline]] inline void interleave(__m512i even, __m512i odd, __m512i *pairs) {
    pairs[0] = _mm512_unpacklo_epi16(even, odd);
    pairs[1] = _mm512_unpackhi_epi16(even, odd);
}

// Store sums that are in the order of interleave() in the order of the numbers.
[[gnu::always_inline]] inline void store_sums(const __m512 *two, float *to) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    _mm512_storeu_ps(to, _mm512_permutex2var_ps(two[0], first, two[1]));
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    _mm512_storeu_ps(to + lanes, _mm512_permutex2var_ps(two[0], second, two[1]));
}

} // namespace
} // namespace quire
