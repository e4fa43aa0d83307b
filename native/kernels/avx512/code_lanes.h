// Registers of 64 bytes of codes: AVX-512 F, BW, VL and DQ, with or without VNNI.
#pragma once

#include "kernels/avx512/lanes.h"
#include "kernels/matmul/matmul_kernels.h"

namespace quire {
namespace {

struct CodeLanes : Lanes {
    using Bytes = __m512i;
    using Ints = __m512i;
    static constexpr BlockShape unpacked{6, 2};

    static Bytes load_bytes(const uint8_t *at) { return _mm512_loadu_si512(at); }
    static void store_bytes(uint8_t *at, Bytes x) { _mm512_storeu_si512(at, x); }
    static Bytes four(const int8_t *at) {
        int32_t bits;
        __builtin_memcpy(&bits, at, sizeof bits);
        return _mm512_set1_epi32(bits);
    }
    // Shift each byte left by `left` bits (right if negative) and mask it.
    [[gnu::always_inline]] static Bytes shifted(Bytes x, int left, int mask) {
        const Bytes moved = left >= 0 ? _mm512_slli_epi16(x, static_cast<unsigned>(left))
                                      : _mm512_srli_epi16(x, static_cast<unsigned>(-left));
        return _mm512_and_si512(moved, _mm512_set1_epi8(static_cast<char>(mask)));
    }
    static Bytes either(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
    static Bytes flip_sign(Bytes x) { return _mm512_xor_si512(x, _mm512_set1_epi8(-128)); }
    static Bytes add_to_bytes(Bytes x, int offset) {
        return _mm512_add_epi8(x, _mm512_set1_epi8(static_cast<char>(offset)));
    }
    static Bytes looked_up(const int8_t *table, int zero_point, Bytes low) {
        const Bytes values = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
        return _mm512_shuffle_epi8(add_to_bytes(values, zero_point), low);
    }

    static Ints set_ints(int32_t x) { return _mm512_set1_epi32(x); }
    static Ints shifted_left(Ints x, int n) { return _mm512_slli_epi32(x, static_cast<unsigned>(n)); }
    static Ints widen_bytes(const uint8_t *at) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
    }
    static Ints widen_signed_bytes(const uint8_t *at) {
        return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(at)));
    }
    static Ints low_nibbles(Ints x) { return _mm512_and_si512(x, _mm512_set1_epi32(15)); }
    static Ints high_nibbles(Ints x) { return _mm512_srli_epi32(x, 4); }
    static Vec to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
    static Vec from_bits(Ints x) { return _mm512_castsi512_ps(x); }
    // 2^(x - 128), even if it is subnormal.
    static Vec power(Ints x) { return times_power_of_two(set(1.0F), sub(to_floats(x), set(128.0F))); }
    static Vec fused(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
    static void store_part(float *to, Vec x, int n) { _mm512_mask_storeu_ps(to, first_lanes(n), x); }

    // Round to the nearest code from -127 to 127; NaN gets an arbitrary code.
    static Ints rounded(Vec x) {
        return _mm512_max_epi32(_mm512_min_epi32(_mm512_cvtps_epi32(x), set_ints(127)), set_ints(-127));
    }
    static void store_codes(int8_t *to, Ints x) {
        _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm512_cvtepi32_epi8(x));
    }
    static int32_t total_ints(Ints x) { return _mm512_reduce_add_epi32(x); }

    // For pair_products.h.
    static Bytes with_signs_of(Bytes x, Bytes codes) {
        return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(codes), _mm512_setzero_si512(), x);
    }
    static Bytes magnitudes(Bytes codes) { return _mm512_abs_epi8(codes); }
    static Ints pairs_of_products(Bytes codes, Bytes x) { return _mm512_maddubs_epi16(codes, x); }
    static Ints add_pairs(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
    static Ints add_widened(Ints sum, Ints pairs) {
        return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    }
};

} // namespace
} // namespace quire
