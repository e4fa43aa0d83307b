// Transposition of 32-bit numbers.
//
// Each instruction set's file includes this once; nothing here has external linkage.
#pragma once

#include <immintrin.h>

namespace quire {
namespace {

// Lane j of register i becomes lane i of register j.
[[gnu::always_inline]] inline void transpose_16(__m512i *rows) {
    __m512i half[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) { // pairs of rows
        half[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        half[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) { // row i + j: columns j, j + 4, j + 8, j + 12 of four rows
        rows[i] = _mm512_unpacklo_epi64(half[i], half[i + 2]);
        rows[i + 1] = _mm512_unpackhi_epi64(half[i], half[i + 2]);
        rows[i + 2] = _mm512_unpacklo_epi64(half[i + 1], half[i + 3]);
        rows[i + 3] = _mm512_unpackhi_epi64(half[i + 1], half[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
        const __m512i low = _mm512_shuffle_i32x4(rows[j], rows[j + 4], 0x88);
        const __m512i low_odd = _mm512_shuffle_i32x4(rows[j], rows[j + 4], 0xdd);
        const __m512i high = _mm512_shuffle_i32x4(rows[j + 8], rows[j + 12], 0x88);
        const __m512i high_odd = _mm512_shuffle_i32x4(rows[j + 8], rows[j + 12], 0xdd);
        half[j] = _mm512_shuffle_i32x4(low, high, 0x88);
        half[j + 8] = _mm512_shuffle_i32x4(low, high, 0xdd);
        half[j + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
        half[j + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = half[i];
}

} // namespace
} // namespace quire
