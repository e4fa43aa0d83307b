#include "kernels/portable/lanes.h"

#include "kernels/attention/attention_tile.h"

namespace quire {
namespace {

// Round to nearest, ties to even; overflow gives infinity, and NaN stays NaN.
uint16_t to_f16_bits(float x) {
    const uint32_t bits = Lanes::to_bits(x);
    const uint32_t sign = bits >> 16 & 0x8000U;
    const uint32_t magnitude = bits & 0x7fffffffU;
    if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U | (magnitude >> 13 & 0x3ffU));
    if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);
    if (magnitude < 0x38800000U) {
        // After adding 0.5, the low bits count multiples of 2^-24, rounded by the hardware.
        const uint32_t rounded = Lanes::to_bits(Lanes::from_bits(magnitude) + 0.5F);
        return static_cast<uint16_t>(sign | (rounded - 0x3f000000U));
    }
    const uint32_t rounded = magnitude + 0xfffU + (magnitude >> 13 & 1U) - 0x38000000U;
    return static_cast<uint16_t>(sign | rounded >> 13);
}

uint16_t to_bf16_bits(float x) {
    const uint32_t bits = Lanes::to_bits(x);
    if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>(bits >> 16 | 0x40U);
    return static_cast<uint16_t>((bits + 0x7fffU + (bits >> 16 & 1U)) >> 16);
}

void to_f16(const float *from, uint16_t *to, int n) {
    for (int i = 0; i < n; ++i) to[i] = to_f16_bits(from[i]);
}

void to_bf16(const float *from, uint16_t *to, int n) {
    for (int i = 0; i < n; ++i) to[i] = to_bf16_bits(from[i]);
}

} // namespace

const AttentionKernels portable::attention_kernels = {attend_tile<Lanes>, merge_tile<Lanes>, to_f16, to_bf16,
                                                      to_codes<Lanes>};

} // namespace quire
