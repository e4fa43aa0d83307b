#include "kernels/avx512/lanes.h"

#include "kernels/attention_tile.h"

namespace quire {
namespace {

__m256i to_f16_lanes(__m512 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

// The BF16 extension's own instruction would flush subnormal numbers.
__m256i to_bf16_lanes(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
}

template <__m256i (*convert)(__m512)> void convert_row(const float *from, uint16_t *to, int n) {
    int i = 0;
    for (; i + Lanes::width <= n; i += Lanes::width) {
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(to + i), convert(_mm512_loadu_ps(from + i)));
    }
    if (i == n) return;
    const __mmask16 rest = Lanes::first_lanes(n - i);
    _mm256_mask_storeu_epi16(to + i, rest, convert(_mm512_maskz_loadu_ps(rest, from + i)));
}

} // namespace

const AttentionKernels avx512::attention_kernels = {attend_tile<Lanes>, merge_tile<Lanes>, convert_row<to_f16_lanes>,
                                                    convert_row<to_bf16_lanes>, to_codes<Lanes>};

} // namespace quire
