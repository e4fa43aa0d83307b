// Four lanes: NEON of AArch64.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace quire {
namespace {

struct Lanes {
    using Vec = float32x4_t;
    struct F16 {
        uint16_t bits;
    };
    struct Bf16 {
        uint16_t bits;
    };
    static constexpr int width = 4;
    static constexpr int registers = 32; // vector registers

    static Vec widen(uint16x4_t x, F16) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }
    static Vec widen(uint16x4_t x, Bf16) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }

    static Vec set(float x) { return vdupq_n_f32(x); }
    static Vec load(const float *p) { return vld1q_f32(p); }
    template <class T> static Vec load(const T *p) { return widen(vld1_u16(&p->bits), T{}); }
    // Load the even or the odd numbers of `width` pairs.
    static Vec load_even(const Bf16 *p) {
        return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(vld1q_u16(&p->bits)), 16));
    }
    static Vec load_odd(const Bf16 *p) {
        return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(vld1q_u16(&p->bits)), vdupq_n_u32(0xffff0000U)));
    }
    // Reading past the end is not allowed.
    static Vec load_part(const float *p, int n) {
        float values[width] = {};
        for (int i = 0; i < n && i < width; ++i) values[i] = p[i];
        return vld1q_f32(values);
    }
    template <class T> static Vec load_part(const T *p, int n) {
        uint16_t values[width] = {};
        for (int i = 0; i < n && i < width; ++i) values[i] = p[i].bits;
        return widen(vld1_u16(values), T{});
    }
    static Vec load(const int8_t *p) {
        const uint32_t bits = four_bytes(p);
        return to_floats(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(bits)))));
    }
    static Vec load_part(const int8_t *p, int n) {
        int8_t values[width] = {};
        for (int i = 0; i < n && i < width; ++i) values[i] = p[i];
        return load(values);
    }

    // Dot products of four codes per lane with four codes of a query.
    using Ints = int32x4_t;
    using Codes = int8x16_t;
    static Ints begin_dot(int) { return vdupq_n_s32(0); }
    static Codes load_keys(const int8_t *p) { return vld1q_s8(p); }
    static Codes set_query(const void *four) { return vreinterpretq_s8_u32(vdupq_n_u32(four_bytes(four))); }
    static Ints add_dot(Ints sum, Codes key, Codes query) { return vdotq_s32(sum, key, query); }
    static Vec to_floats(Ints x) { return vcvtq_f32_s32(x); }

    static void store(float *p, Vec x) { vst1q_f32(p, x); }
    static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
    static Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
    static Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
    static Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
    static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
    // Returns the second operand if one is NaN, like the other instruction sets.
    static Vec max(Vec a, Vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
    static Vec min(Vec a, Vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
    static Vec round(Vec x) { return vrndnq_f32(x); }
    static Vec power_of_two(Vec n) {
        return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23));
    }
    static Vec times_power_of_two(Vec x, Vec n) { return mul(power_of_two(n), x); }
    static Vec zero_where_below(Vec x, float limit, Vec value) {
        return vbslq_f32(vcltq_f32(x, set(limit)), set(0.0F), value);
    }
    static float first(Vec x) { return vgetq_lane_f32(x, 0); }
    static float total(Vec x) {
        const float32x2_t sum = vadd_f32(vget_low_f32(x), vget_high_f32(x));
        return vget_lane_f32(sum, 0) + vget_lane_f32(sum, 1);
    }
    static float largest(Vec x) {
        float lanes[width];
        vst1q_f32(lanes, x);
        float found = lanes[0];
        for (int i = 1; i < width; ++i) found = found > lanes[i] ? found : lanes[i];
        return found;
    }

  private:
    static uint32_t four_bytes(const void *p) {
        uint32_t bits;
        __builtin_memcpy(&bits, p, sizeof bits);
        return bits;
    }
};

} // namespace
} // namespace quire
