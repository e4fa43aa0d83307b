#include "kernels/neon/lanes.h"

#include "kernels/attention/attention_tile.h"

namespace quire {
namespace {

uint16x4_t to_f16_lanes(float32x4_t x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }

uint16x4_t to_bf16_lanes(float32x4_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16);
}

template <uint16x4_t (*convert)(float32x4_t)> void convert_row(const float *from, uint16_t *to, int n) {
    int i = 0;
    for (; i + Lanes::width <= n; i += Lanes::width) vst1_u16(to + i, convert(vld1q_f32(from + i)));
    if (i == n) return;
    uint16_t last[Lanes::width];
    vst1_u16(last, convert(Lanes::load_part(from + i, n - i)));
    for (int j = 0; i + j < n; ++j) to[i + j] = last[j];
}

} // namespace

const AttentionKernels neon::attention_kernels = {attend_tile<Lanes>, merge_tile<Lanes>, convert_row<to_f16_lanes>,
                                                  convert_row<to_bf16_lanes>, to_codes<Lanes>};

} // namespace quire
