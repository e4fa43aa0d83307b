// Registers of 16 bytes of codes: NEON with the dot product.
#pragma once

#include "kernels/matmul/matmul_kernels.h"
#include "kernels/neon/lanes.h"

namespace quire {
namespace {

struct CodeLanes : Lanes {
    using Bytes = uint8x16_t;
    using Ints = int32x4_t;
    static constexpr BlockShape few{2, 1}, more{2, 1}, unpacked{4, 1};
    static constexpr int max_packed_rows(const ChunkLayout &) { return few_packed_rows; }
    // SDOT multiplies signed numbers; unsigned codes of fewer than 8 bits fit.
    static constexpr bool signed_codes = true;
    static constexpr int code_class(int) { return 255; }

    static Bytes load_bytes(const uint8_t *at) { return vld1q_u8(at); }
    static void store_bytes(uint8_t *at, Bytes x) { vst1q_u8(at, x); }
    static Bytes four(const int8_t *at) {
        int32_t bits;
        __builtin_memcpy(&bits, at, sizeof bits);
        return vreinterpretq_u8_s32(vdupq_n_s32(bits));
    }
    // Shift each byte left by `left` bits (right if negative) and mask it.
    static Bytes shifted(Bytes x, int left, int mask) {
        return vandq_u8(vshlq_u8(x, vdupq_n_s8(static_cast<int8_t>(left))), vdupq_n_u8(static_cast<uint8_t>(mask)));
    }
    static Bytes either(Bytes a, Bytes b) { return vorrq_u8(a, b); }
    static Bytes flip_sign(Bytes x) { return veorq_u8(x, vdupq_n_u8(128)); }
    static Bytes add_to_bytes(Bytes x, int offset) { return vaddq_u8(x, vdupq_n_u8(static_cast<uint8_t>(offset))); }
    static Bytes looked_up(const int8_t *table, int zero_point, Bytes low) {
        return vqtbl1q_u8(add_to_bytes(vreinterpretq_u8_s8(vld1q_s8(table)), zero_point), low);
    }

    static Ints set_ints(int32_t x) { return vdupq_n_s32(x); }
    static Ints shifted_left(Ints x, int n) { return vshlq_s32(x, vdupq_n_s32(n)); }
    static uint8x8_t four_bytes(const uint8_t *at) {
        uint32_t bits;
        __builtin_memcpy(&bits, at, sizeof bits);
        return vcreate_u8(bits);
    }
    static Ints widen_bytes(const uint8_t *at) {
        return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(four_bytes(at)))));
    }
    static Ints widen_signed_bytes(const uint8_t *at) {
        return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(four_bytes(at)))));
    }
    static Ints low_nibbles(Ints x) { return vandq_s32(x, set_ints(15)); }
    static Ints high_nibbles(Ints x) { return vshrq_n_s32(x, 4); }
    static Vec to_floats(Ints x) { return vcvtq_f32_s32(x); }
    static Vec from_bits(Ints x) { return vreinterpretq_f32_s32(x); }
    // 2^(x - 128), even if it is subnormal.
    static Vec power(Ints x) {
        const Ints half = vshrq_n_s32(x, 1), rest = vsubq_s32(x, half), bias = set_ints(63);
        return mul(from_bits(vshlq_n_s32(vaddq_s32(half, bias), 23)),
                   from_bits(vshlq_n_s32(vaddq_s32(rest, bias), 23)));
    }
    static Vec fused(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
    static void store_part(float *to, Vec x, int n) {
        float values[width];
        vst1q_f32(values, x);
        for (int i = 0; i < n; ++i) to[i] = values[i];
    }

    // Round to the nearest code from -127 to 127; NaN gets an arbitrary code.
    static Ints rounded(Vec x) { return vmaxq_s32(vminq_s32(vcvtnq_s32_f32(x), set_ints(127)), set_ints(-127)); }
    static void store_codes(int8_t *to, Ints x) {
        const int16x4_t words = vmovn_s32(x);
        const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
        const int32_t four_codes = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
        __builtin_memcpy(to, &four_codes, sizeof four_codes);
    }
    static int32_t total_ints(Ints x) { return vaddvq_s32(x); }

    template <int> struct Products {
        Ints sum;
        void start(Ints begin) { sum = begin; }
        void add(Bytes codes, Bytes x, int) {
            sum = vdotq_s32(sum, vreinterpretq_s8_u8(codes), vreinterpretq_s8_u8(x));
        }
        Ints total(int) const { return sum; }
    };
};

} // namespace
} // namespace quire
