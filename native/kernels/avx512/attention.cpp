#include "kernels/avx512/bf16_pairs.h"

#include "kernels/attention/attention_tile.h"

namespace quire {
namespace {

__m256i to_f16_lanes(__m512 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

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
