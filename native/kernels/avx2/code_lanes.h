// Registers of 32 bytes of codes: AVX2, with or without AVX-VNNI.
#pragma once

#include "kernels/avx2/lanes.h"
#include "kernels/matmul/matmul_kernels.h"

namespace quire {
namespace {

struct CodeLanes : Lanes {
    using Bytes = __m256i;
    using Ints = __m256i;
    static constexpr BlockShape few{2, 1}, more{2, 1}, unpacked{4, 1};
    static constexpr int max_packed_rows(const ChunkLayout &) { return few_packed_rows; }

    static Bytes load_bytes(const uint8_t *at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at)); }
    static void store_bytes(uint8_t *at, Bytes x) { _mm256_storeu_si256(reinterpret_cast<__m256i *>(at), x); }
    static Bytes four(const int8_t *at) {
        int32_t bits;
        __builtin_memcpy(&bits, at, sizeof bits);
        return _mm256_set1_epi32(bits);
    }
    // Shift each byte left by `left` bits (right if negative) and mask it.
    [[gnu::always_inline]] static Bytes shifted(Bytes x, int left, int mask) {
        const Bytes moved = left >= 0 ? _mm256_slli_epi16(x, left) : _mm256_srli_epi16(x, -left);
        return _mm256_and_si256(moved, _mm256_set1_epi8(static_cast<char>(mask)));
    }
    static Bytes either(Bytes a, Bytes b) { return _mm256_or_si256(a, b); }
    static Bytes flip_sign(Bytes x) { return _mm256_xor_si256(x, _mm256_set1_epi8(-128)); }
    static Bytes add_to_bytes(Bytes x, int offset) {
        return _mm256_add_epi8(x, _mm256_set1_epi8(static_cast<char>(offset)));
    }
    static Bytes looked_up(const int8_t *table, int zero_point, Bytes low) {
        const Bytes values = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i *>(table)));
        return _mm256_shuffle_epi8(add_to_bytes(values, zero_point), low);
    }

    static Ints set_ints(int32_t x) { return _mm256_set1_epi32(x); }
    static Ints shifted_left(Ints x, int n) { return _mm256_slli_epi32(x, n); }
    static Ints widen_bytes(const uint8_t *at) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at)));
    }
    static Ints widen_signed_bytes(const uint8_t *at) {
        return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(at)));
    }
    static Ints low_nibbles(Ints x) { return _mm256_and_si256(x, _mm256_set1_epi32(15)); }
    static Ints high_nibbles(Ints x) { return _mm256_srli_epi32(x, 4); }
    static Vec to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
    static Vec from_bits(Ints x) { return _mm256_castsi256_ps(x); }
    // 2^(x - 128), even if it is subnormal.
    static Vec power(Ints x) {
        const Ints half = _mm256_srli_epi32(x, 1), rest = _mm256_sub_epi32(x, half), bias = set_ints(63);
        return mul(from_bits(shifted_left(_mm256_add_epi32(half, bias), 23)),
                   from_bits(shifted_left(_mm256_add_epi32(rest, bias), 23)));
    }
    static Vec fused(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
    static void store_part(float *to, Vec x, int n) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane), x);
    }

    // Round to the nearest code from -127 to 127; NaN gets an arbitrary code.
    static Ints rounded(Vec x) {
        return _mm256_max_epi32(_mm256_min_epi32(_mm256_cvtps_epi32(x), set_ints(127)), set_ints(-127));
    }
    static void store_codes(int8_t *to, Ints x) {
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        _mm_storel_epi64(reinterpret_cast<__m128i *>(to), _mm_packs_epi16(words, words));
    }
    static int32_t total_ints(Ints x) {
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
    }

    // For pair_products.h.
    static Bytes with_signs_of(Bytes x, Bytes codes) { return _mm256_sign_epi8(x, codes); } // zero if the code is zero
    static Bytes magnitudes(Bytes codes) { return _mm256_abs_epi8(codes); }
    static Ints pairs_of_products(Bytes codes, Bytes x) { return _mm256_maddubs_epi16(codes, x); }
    static Ints add_pairs(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
    static Ints add_widened(Ints sum, Ints pairs) {
        return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
};

} // namespace
} // namespace quire
