// Eight lanes: AVX2 with FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace quire {
namespace {

struct Lanes {
    using Vec = __m256;
    struct F16 {
        uint16_t bits;
    };
    struct Bf16 {
        uint16_t bits;
    };
    static constexpr int width = 8;
    static constexpr int registers = 16; // vector registers

    static Vec widen(__m128i x, F16) { return _mm256_cvtph_ps(x); }
    static Vec widen(__m128i x, Bf16) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }

    static Vec set(float x) { return _mm256_set1_ps(x); }
    static Vec load(const float *p) { return _mm256_loadu_ps(p); }
    template <class T> static Vec load(const T *p) {
        return widen(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)), T{});
    }
    // Load the even or the odd numbers of `width` pairs.
    static Vec load_even(const Bf16 *p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)), 16));
    }
    static Vec load_odd(const Bf16 *p) {
        const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000));
        return _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)), upper));
    }
    static Vec load_part(const float *p, int n) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
    }
    template <class T> static Vec load_part(const T *p, int n) {
        // There is no masked load of 16-bit numbers, and reading past the end is not allowed.
        uint16_t values[width] = {};
        for (int i = 0; i < n; ++i) values[i] = p[i].bits;
        return widen(_mm_loadu_si128(reinterpret_cast<const __m128i *>(values)), T{});
    }
    static Vec load(const int8_t *p) {
        return to_floats(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))));
    }
    static Vec load_part(const int8_t *p, int n) {
        int8_t values[width] = {};
        for (int i = 0; i < n; ++i) values[i] = p[i];
        return load(values);
    }

    // Dot products of four codes per lane with four codes of a query, by 16-bit pairs.
    using Ints = __m256i;
    struct Codes {
        __m256i even, odd;
    };
    static Ints begin_dot(int) { return _mm256_setzero_si256(); }
    static Codes load_keys(const int8_t *p) { return split(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
    static Codes set_query(const void *four) {
        int bits;
        __builtin_memcpy(&bits, four, sizeof bits);
        return split(_mm256_set1_epi32(bits));
    }
    static Ints add_dot(Ints sum, const Codes &key, const Codes &query) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(key.even, query.even));
        return _mm256_add_epi32(sum, _mm256_madd_epi16(key.odd, query.odd));
    }
    static Vec to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }

    static void store(float *p, Vec x) { _mm256_storeu_ps(p, x); }
    static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
    static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
    static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
    static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
    static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
    static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
    static Vec round(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static Vec power_of_two(Vec n) {
        const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    }
    static Vec times_power_of_two(Vec x, Vec n) { return mul(power_of_two(n), x); }
    static Vec zero_where_below(Vec x, float limit, Vec value) {
        return _mm256_andnot_ps(_mm256_cmp_ps(x, set(limit), _CMP_LT_OQ), value);
    }
    static float first(Vec x) { return _mm256_cvtss_f32(x); }
    static float total(Vec x) {
        __m128 sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
        return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
    }
    static float largest(Vec x) {
        __m128 found = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        found = _mm_max_ps(found, _mm_movehl_ps(found, found));
        return _mm_cvtss_f32(_mm_max_ss(found, _mm_movehdup_ps(found)));
    }

  private:
    static Codes split(__m256i x) { return {_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8)}; }
};

} // namespace
} // namespace quire
