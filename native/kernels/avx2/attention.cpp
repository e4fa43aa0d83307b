#include "kernels/avx2/lanes.h"

#include "kernels/attention/attention_tile.h"

namespace quire {
namespace {

__m128i to_f16_lanes(__m256 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

__m128i to_bf16_lanes(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i chosen = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
}

template <__m128i (*convert)(__m256)> void convert_row(const float *from, uint16_t *to, int n) {
    int i = 0;
    for (; i + Lanes::width <= n; i += Lanes::width) {
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to + i), convert(_mm256_loadu_ps(from + i)));
    }
    if (i == n) return;
    uint16_t last[Lanes::width];
    _mm_storeu_si128(reinterpret_cast<__m128i *>(last), convert(Lanes::load_part(from + i, n - i)));
    for (int j = 0; i + j < n; ++j) to[i + j] = last[j];
}

} // namespace

const AttentionKernels avx2::attention_kernels = {attend_tile<Lanes>, merge_tile<Lanes>, convert_row<to_f16_lanes>,
                                                  convert_row<to_bf16_lanes>, to_codes<Lanes>};

} // namespace quire
