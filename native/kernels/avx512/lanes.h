// Sixteen lanes: AVX-512 F, BW, VL and DQ.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire {
namespace {

struct Lanes {
    using Vec = __m512;
    struct F16 {
        uint16_t bits;
    };
    struct Bf16 {
        uint16_t bits;
    };
    static constexpr int width = 16;
    static constexpr int registers = 32; // vector registers

    static __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1U << n) - 1U); }
    static Vec widen(__m256i x, F16) { return _mm512_cvtph_ps(x); }
    static Vec widen(__m256i x, Bf16) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

    static Vec set(float x) { return _mm512_set1_ps(x); }
    static Vec load(const float *p) { return _mm512_loadu_ps(p); }
    template <class T> static Vec load(const T *p) {
        return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)), T{});
    }
    // Load the even or the odd numbers of `width` pairs.
    static Vec load_even(const Bf16 *p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16)); }
    static Vec load_odd(const Bf16 *p) {
        const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
        return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper));
    }
    static Vec load_part(const float *p, int n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
    template <class T> static Vec load_part(const T *p, int n) {
        return widen(_mm256_maskz_loadu_epi16(first_lanes(n), p), T{});
    }
    static Vec load(const int8_t *p) {
        return to_floats(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))));
    }
    static Vec load_part(const int8_t *p, int n) {
        return to_floats(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), p)));
    }

    // Dot products of four codes per lane with four codes of a query, by 16-bit pairs.
    using Ints = __m512i;
    struct Codes {
        __m512i even, odd;
    };
    static Ints begin_dot(int) { return _mm512_setzero_si512(); }
    static Codes load_keys(const int8_t *p) { return split(_mm512_loadu_si512(p)); }
    static Codes set_query(const void *four) {
        int bits;
        __builtin_memcpy(&bits, four, sizeof bits);
        return split(_mm512_set1_epi32(bits));
    }
    static Ints add_dot(Ints sum, const Codes &key, const Codes &query) {
        sum = _mm512_add_epi32(sum, _mm512_madd_epi16(key.even, query.even));
        return _mm512_add_epi32(sum, _mm512_madd_epi16(key.odd, query.odd));
    }
    static Vec to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }

    static void store(float *p, Vec x) { _mm512_storeu_ps(p, x); }
    static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
    static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
    static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
    static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
    static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
    static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
    static Vec round(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Vec power_of_two(Vec n) {
        const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
        return _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23));
    }
    static Vec times_power_of_two(Vec x, Vec n) { return _mm512_scalef_ps(x, n); }
    static Vec zero_where_below(Vec x, float limit, Vec value) {
        return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set(limit), _CMP_NLT_UQ), value);
    }
    static float first(Vec x) { return _mm512_cvtss_f32(x); }
    static float total(Vec x) {
        const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
        __m128 sum = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
        sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
    }
    static float largest(Vec x) {
        const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
        __m128 found = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
        found = _mm_max_ps(found, _mm_movehl_ps(found, found));
        return _mm_cvtss_f32(_mm_max_ss(found, _mm_movehdup_ps(found)));
    }

  private:
    static Codes split(__m512i x) { return {_mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8), _mm512_srai_epi16(x, 8)}; }
};

} // namespace
} // namespace quire
