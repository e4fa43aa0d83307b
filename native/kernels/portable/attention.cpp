// Plain C++, four lanes: what runs where no better instruction set is known, and what the others are tested against.
#include "kernels/attention_kernel.h"

namespace quire {
namespace {

struct Four {
    static constexpr int width = 4;
    struct reg {
        float x[4];
    };
    template <class F> static reg each(F f) { return {{f(0), f(1), f(2), f(3)}}; }
    static reg zero() { return {}; }
    static reg set1(float v) { return {{v, v, v, v}}; }
    static reg load(const float *p) { return {{p[0], p[1], p[2], p[3]}}; }
    static void store(float *p, reg r) { for (int i = 0; i < 4; ++i) p[i] = r.x[i]; }
    static float from_f16(uint16_t half) {
        _Float16 x;
        __builtin_memcpy(&x, &half, sizeof x);
        return static_cast<float>(x);
    }
    static uint16_t to_f16(float x) {
        auto half = static_cast<_Float16>(x);
        uint16_t bits;
        __builtin_memcpy(&bits, &half, sizeof bits);
        return bits;
    }
    static uint16_t to_bf16(float x) { return Bf16<Four>::from(x); }
    static reg load_f16(const uint16_t *p) { return each([p](int i) { return from_f16(p[i]); }); }
    static reg load_bf16(const uint16_t *p) { return each([p](int i) { return Bf16<Four>::to(p[i]); }); }
    static float one(KvType type, const void *p, int64_t i) {
        if (type == KvType::f32) return static_cast<const float *>(p)[i];
        uint16_t half = static_cast<const uint16_t *>(p)[i];
        return type == KvType::f16 ? from_f16(half) : Bf16<Four>::to(half);
    }
    static reg add(reg a, reg b) { return each([&](int i) { return a.x[i] + b.x[i]; }); }
    static reg sub(reg a, reg b) { return each([&](int i) { return a.x[i] - b.x[i]; }); }
    static reg mul(reg a, reg b) { return each([&](int i) { return a.x[i] * b.x[i]; }); }
    static reg fma(reg a, reg b, reg c) { return each([&](int i) { return a.x[i] * b.x[i] + c.x[i]; }); }
    static reg max(reg a, reg b) { return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; }); }
    static reg round(reg a) { return each([&](int i) { return __builtin_rintf(a.x[i]); }); }
    static reg pow2(reg n) { return each([&](int i) { return __builtin_ldexpf(1.0F, static_cast<int>(n.x[i])); }); }
    static float sum(reg a) { return (a.x[0] + a.x[2]) + (a.x[1] + a.x[3]); }
    static float largest(reg a) {
        float top = a.x[0];
        for (int i = 1; i < 4; ++i) top = a.x[i] > top ? a.x[i] : top;
        return top;
    }
};

} // namespace

const AttentionKernels portable_attention{&AttentionKernel<Four>::attend, &AttentionKernel<Four>::store_row};

} // namespace quire
