#include <immintrin.h>

#include "kernels/attention_kernel.h"

namespace quire {
namespace {

struct Sixteen {
    static constexpr int width = 16;
    using reg = __m512;
    static reg zero() { return _mm512_setzero_ps(); }
    static reg set1(float v) { return _mm512_set1_ps(v); }
    static reg load(const float *p) { return _mm512_loadu_ps(p); }
    static void store(float *p, reg r) { _mm512_storeu_ps(p, r); }
    static reg load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p))); }
    static reg load_bf16(const uint16_t *p) {
        __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
        return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
    }
    static uint16_t to_f16(float x) { return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); }
    static uint16_t to_bf16(float x) { return Bf16<Sixteen>::from(x); }
    static float one(KvType type, const void *p, int64_t i) {
        if (type == KvType::f32) return static_cast<const float *>(p)[i];
        uint16_t half = static_cast<const uint16_t *>(p)[i];
        return type == KvType::f16 ? _cvtsh_ss(half) : Bf16<Sixteen>::to(half);
    }
    static reg add(reg a, reg b) { return _mm512_add_ps(a, b); }
    static reg sub(reg a, reg b) { return _mm512_sub_ps(a, b); }
    static reg mul(reg a, reg b) { return _mm512_mul_ps(a, b); }
    static reg fma(reg a, reg b, reg c) { return _mm512_fmadd_ps(a, b, c); }
    static reg max(reg a, reg b) { return _mm512_max_ps(a, b); }
    static reg round(reg a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static reg pow2(reg n) { return _mm512_scalef_ps(_mm512_set1_ps(1.0F), n); }
    static float sum(reg a) { return _mm512_reduce_add_ps(a); }
    static float largest(reg a) { return _mm512_reduce_max_ps(a); }
};

} // namespace

const AttentionKernels avx512_attention{&AttentionKernel<Sixteen>::attend, &AttentionKernel<Sixteen>::store_row};

} // namespace quire
