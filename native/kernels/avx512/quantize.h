// Quantization of activations, 16 groups of 32 columns at a time: their scales and sums fill registers, so one
// instruction does for 16 groups what is done once per group.  The bits are those of quantize_group in matmul_tile.h.
#pragma once

#include "kernels/avx512/code_lanes.h"

#include "kernels/matmul/matmul_tile.h"

namespace quire {
namespace {

constexpr int groups_at_once = 16;

// Combines the four 128-bit lanes of each of four registers into one lane: lane i of the result is register i's.
template <class Combine> __m512i over_parts(const __m512i *x, Combine combine) {
    const __m512i low = combine(_mm512_shuffle_i32x4(x[0], x[1], 0x44), _mm512_shuffle_i32x4(x[0], x[1], 0xee));
    const __m512i high = combine(_mm512_shuffle_i32x4(x[2], x[3], 0x44), _mm512_shuffle_i32x4(x[2], x[3], 0xee));
    return combine(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xdd));
}

// Move number 4 p + r to place 4 r + p.
inline __m512i transposed(__m512i x) {
    return _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x);
}

// Combines the four numbers in each 128-bit part of four registers.  Number 4 r + p of the result comes from part p of
// register r.
template <class Combine> __m512i over_numbers(const __m512i *x, Combine combine) {
    const __m512i a = combine(_mm512_unpacklo_epi32(x[0], x[1]), _mm512_unpackhi_epi32(x[0], x[1]));
    const __m512i b = combine(_mm512_unpacklo_epi32(x[2], x[3]), _mm512_unpackhi_epi32(x[2], x[3]));
    return transposed(combine(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)));
}

// The bits of the largest magnitude of each group.  As integers, the bits of infinities and NaNs are the largest.
inline __m512i largest_bits(const float *from) {
    const auto larger = [](__m512i a, __m512i b) { return _mm512_max_epi32(a, b); };
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i of_four[4];
    for (int i = 0; i < 4; ++i) {
        __m512i of_group[4];
        for (int j = 0; j < 4; ++j, from += group_columns) {
            const __m512i low = _mm512_and_si512(_mm512_loadu_si512(from), magnitude);
            of_group[j] = larger(low, _mm512_and_si512(_mm512_loadu_si512(from + Lanes::width), magnitude));
        }
        of_four[i] = over_parts(of_group, larger);
    }
    return over_numbers(of_four, larger);
}

// Write the codes of 8 groups and return the sums of their 16 halves.  NaN gets an arbitrary code.
inline __m512i write_codes(const float *from, const float *inverse, int8_t *codes) {
    __m512i of_four[4];
    for (int i = 0; i < 4; ++i, from += register_bytes, codes += register_bytes) {
        __m512i x[4];
        for (int j = 0; j < 4; ++j) {
            const __m512 factor = _mm512_set1_ps(inverse[2 * i + j / 2]);
            x[j] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from + j * Lanes::width), factor));
        }
        const __m512i bytes =
            transposed(_mm512_packs_epi16(_mm512_packs_epi32(x[0], x[1]), _mm512_packs_epi32(x[2], x[3])));
        _mm512_storeu_si512(codes, bytes);
        const __m512i pairs = _mm512_maddubs_epi16(_mm512_set1_epi8(1), bytes);
        of_four[i] = _mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
    }
    return over_numbers(of_four, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); });
}

struct QuantizedRow {
    int8_t *codes;
    float *scales, *scaled_sums, *scaled_half_sums;
    int32_t *negated_sums, *negated_half_sums;
};

inline void quantize_groups(const float *from, const QuantizedRow &to, int64_t group) {
    const __m512i largest = largest_bits(from);
    __m512 scale = _mm512_div_ps(_mm512_castsi512_ps(largest), _mm512_set1_ps(127.0F));
    const __mmask16 strange = _mm512_cmpge_epi32_mask(largest, _mm512_set1_epi32(0x7f800000));
    scale = _mm512_mask_mov_ps(scale, strange, _mm512_set1_ps(__builtin_nanf("")));
    const __mmask16 has_inverse = _mm512_cmp_ps_mask(scale, _mm512_set1_ps(1e-37F), _CMP_GT_OQ);
    alignas(64) float inverse[groups_at_once];
    _mm512_store_ps(inverse, _mm512_maskz_div_ps(has_inverse, _mm512_set1_ps(1.0F), scale));
    int8_t *codes = to.codes + group * group_columns;
    constexpr int columns = 8 * group_columns;
    const __m512i halves[] = {write_codes(from, inverse, codes),
                              write_codes(from + columns, inverse + 8, codes + columns)};
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512i sums = _mm512_add_epi32(_mm512_permutex2var_epi32(halves[0], even, halves[1]),
                                          _mm512_permutex2var_epi32(halves[0], odd, halves[1]));
    const __m512i zero = _mm512_setzero_si512();
    _mm512_storeu_ps(to.scales + group, scale);
    _mm512_storeu_ps(to.scaled_sums + group, _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sums)));
    _mm512_storeu_si512(to.negated_sums + group, _mm512_sub_epi32(zero, sums));
    __m512i group_of = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    for (int i = 0; i < 2; ++i, group_of = _mm512_add_epi32(group_of, _mm512_set1_epi32(8))) {
        const __m512 scales = _mm512_permutexvar_ps(group_of, scale);
        const int64_t at = 2 * group + i * groups_at_once;
        _mm512_storeu_si512(to.negated_half_sums + at, _mm512_sub_epi32(zero, halves[i]));
        _mm512_storeu_ps(to.scaled_half_sums + at, _mm512_mul_ps(scales, _mm512_cvtepi32_ps(halves[i])));
    }
}

void quantize_by_16_groups(const float *x, int64_t first, int64_t last, QuantizedRows &to) {
    const int64_t n_groups = QuantizedRows::n_groups(to.n_in);
    for (int64_t row = first; row < last; ++row) {
        const QuantizedRow of_row{to.codes(row),        to.scales(row),
                                  to.scaled_sums(row),  to.scaled_half_sums(row),
                                  to.negated_sums(row), to.negated_half_sums(row)};
        const float *from = x + row * to.n_in;
        int64_t g = 0;
        for (; (g + groups_at_once) * group_columns <= to.n_in; g += groups_at_once)
            quantize_groups(from + g * group_columns, of_row, g);
        for (; g < n_groups; ++g) {
            const bool is_padding = (g + 1) * group_columns > to.n_in;
            quantize_group<CodeLanes>(is_padding ? nullptr : from + g * group_columns, to, row, g);
        }
    }
}

} // namespace
} // namespace quire
