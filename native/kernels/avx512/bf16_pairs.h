// Two rows of BF16 side by side, and rounding to BF16 without the extension.
//
// Each instruction set's file includes this once, after its Lanes; nothing here has external linkage.
#pragma once

#include "kernels/avx512/lanes.h"

namespace quire {
namespace {

// Interleave two rows: lane j of the two result registers has number j of both.
[[gnu::always_inline]] inline void pair_up(__m512i even, __m512i odd, __m512i *pairs) {
    const __m512i step = _mm512_set1_epi32(0x200000);
    const __m512i first = _mm512_add_epi32(step, _mm512_setr_epi32(0x0000, 0x10001, 0x20002, 0x30003, 0x40004, 0x50005,
                                                                   0x60006, 0x70007, 0x80008, 0x90009, 0xa000a, 0xb000b,
                                                                   0xc000c, 0xd000d, 0xe000e, 0xf000f));
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(0x100010));
    pairs[0] = _mm512_permutex2var_epi16(even, first, odd);
    pairs[1] = _mm512_permutex2var_epi16(even, second, odd);
}

// A mask of the first n of 32 numbers.
inline __mmask32 first_of_32(int n) { return n >= 32 ? ~0U : n <= 0 ? 0U : (1U << n) - 1; }

// Round to nearest even.  The instruction of the extension would flush subnormal numbers.
[[gnu::always_inline]] inline __m256i to_bf16_lanes(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
}

} // namespace
} // namespace quire
