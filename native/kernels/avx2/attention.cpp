#include <immintrin.h>

#include "kernels/attention_kernel.h"

namespace quire {
namespace {

struct Eight {
    static constexpr int width = 8;
    using reg = __m256;
    static reg zero() { return _mm256_setzero_ps(); }
    static reg set1(float v) { return _mm256_set1_ps(v); }
    static reg load(const float *p) { return _mm256_loadu_ps(p); }
    static void store(float *p, reg r) { _mm256_storeu_ps(p, r); }
    static reg load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))); }
    static reg load_bf16(const uint16_t *p) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
    static uint16_t to_f16(float x) { return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); }
    static uint16_t to_bf16(float x) { return Bf16<Eight>::from(x); }
    static float one(KvType type, const void *p, int64_t i) {
        if (type == KvType::f32) return static_cast<const float *>(p)[i];
        uint16_t half = static_cast<const uint16_t *>(p)[i];
        return type == KvType::f16 ? _cvtsh_ss(half) : Bf16<Eight>::to(half);
    }
    static reg add(reg a, reg b) { return _mm256_add_ps(a, b); }
    static reg sub(reg a, reg b) { return _mm256_sub_ps(a, b); }
    static reg mul(reg a, reg b) { return _mm256_mul_ps(a, b); }
    static reg fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }
    static reg max(reg a, reg b) { return _mm256_max_ps(a, b); }
    static reg round(reg a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static reg pow2(reg n) {
        __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
    }
    static float sum(reg a) {
        __m128 half = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        half = _mm_add_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
    }
    static float largest(reg a) {
        __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
        half = _mm_max_ps(half, _mm_movehl_ps(half, half));
        return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
    }
};

} // namespace

const AttentionKernels avx2_attention{&AttentionKernel<Eight>::attend, &AttentionKernel<Eight>::store_row};

} // namespace quire
