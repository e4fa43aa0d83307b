// Registers of 16 bytes of codes in plain C++.
#pragma once

#include "kernels/matmul/matmul_kernels.h"
#include "kernels/portable/lanes.h"

namespace quire {
namespace {

struct CodeLanes : Lanes {
    // Compiler vector types instead of loops over lanes: vectorizing these loops again, unrolled in every block, took
    // most of the compile time.
    using Bytes [[gnu::vector_size(16)]] = uint8_t;
    using Ints [[gnu::vector_size(16)]] = int32_t;
    static constexpr BlockShape few{0, 0}, unpacked{2, 1};
    static constexpr int max_packed_rows(const ChunkLayout &) { return 0; }
    static constexpr bool signed_codes = false;
    static constexpr int code_class(int) { return 255; }

    static Bytes load_bytes(const uint8_t *at) {
        Bytes bytes;
        __builtin_memcpy(&bytes, at, sizeof bytes);
        return bytes;
    }
    static void store_bytes(uint8_t *at, Bytes x) { __builtin_memcpy(at, &x, sizeof x); }
    static Bytes four(const int8_t *at) {
        int32_t bits;
        __builtin_memcpy(&bits, at, sizeof bits);
        return reinterpret_cast<Bytes>(set_ints(bits));
    }
    // Shift each byte left by `left` bits (right if negative) and mask it.
    static Bytes shifted(Bytes x, int left, int mask) {
        return (left >= 0 ? x << left : x >> -left) & static_cast<uint8_t>(mask);
    }
    static Bytes either(Bytes a, Bytes b) { return a | b; }
    static Bytes flip_sign(Bytes x) { return x ^ uint8_t{128}; }
    static Bytes add_to_bytes(Bytes x, int offset) { return x + static_cast<uint8_t>(offset); }
    // Replace codes of `bits` bits by a table's values, in place.  Each bit of a code halves the candidates.
    template <int bits>
    [[gnu::noinline]] static void look_up(const int8_t *table, int zero_point, uint8_t *codes, int n) {
        constexpr int half = 1 << (bits - 1);
        Bytes odd[half], change[half];
        for (int i = 0; i < half; ++i) {
            odd[i] = Bytes{} + static_cast<uint8_t>(table[2 * i + 1] + zero_point);
            change[i] = odd[i] ^ static_cast<uint8_t>(table[2 * i] + zero_point);
        }
        for (int at = 0; at < n; at += static_cast<int>(sizeof(Bytes))) {
            const Bytes code = load_bytes(codes + at);
            const auto is_clear = [&](int bit) {
                const auto mask = static_cast<uint8_t>(1U << bit);
                return reinterpret_cast<Bytes>((code & mask) == 0);
            };
            Bytes found[half];
#pragma GCC unroll 8
            for (int i = 0; i < half; ++i) found[i] = odd[i] ^ (is_clear(0) & change[i]);
#pragma GCC unroll 3
            for (int bit = 1; bit < bits; ++bit) {
#pragma GCC unroll 4
                for (int i = 0; i < half >> bit; ++i) {
                    const Bytes set = found[2 * i + 1];
                    found[i] = set ^ (is_clear(bit) & (set ^ found[2 * i]));
                }
            }
            store_bytes(codes + at, found[0]);
        }
    }

    static Ints set_ints(int32_t x) { return Ints{x, x, x, x}; }
    static Ints shifted_left(Ints x, int n) { return x << n; }
    static Ints widen_bytes(const uint8_t *at) { return Ints{at[0], at[1], at[2], at[3]}; }
    static Ints widen_signed_bytes(const uint8_t *at) {
        const auto *codes = reinterpret_cast<const int8_t *>(at);
        return Ints{codes[0], codes[1], codes[2], codes[3]};
    }
    static Ints low_nibbles(Ints x) { return x & 15; }
    static Ints high_nibbles(Ints x) { return x >> 4; }
    static Vec to_floats(Ints x) {
        return make([&](int i) { return static_cast<float>(x[i]); });
    }
    static Vec from_bits(Ints x) {
        return make([&](int i) { return Lanes::from_bits(static_cast<uint32_t>(x[i])); });
    }
    // 2^(x - 128), even if it is subnormal.
    static Vec power(Ints x) {
        const auto factor = [](int n) { return Lanes::from_bits(static_cast<uint32_t>(n + 63) << 23); };
        return make([&](int i) { return factor(x[i] / 2) * factor(x[i] - x[i] / 2); });
    }
    // Rounded once, like the fused instructions of other sets.
    static Vec fused(const Vec &a, const Vec &b, const Vec &c) {
        return make([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
    }
    static void store_part(float *to, const Vec &x, int n) {
        for (int i = 0; i < n; ++i) to[i] = x.lane[i];
    }

    // Round to the nearest code from -127 to 127; NaN gets the lowest.
    static Ints rounded(const Vec &x) {
        const Vec limited = min(max(x, set(-127.0F)), set(127.0F));
        const Vec whole = round(limited);
        Ints codes{};
        for (int i = 0; i < width; ++i) codes[i] = static_cast<int32_t>(whole.lane[i]);
        return codes;
    }
    static void store_codes(int8_t *to, Ints x) {
        for (int i = 0; i < width; ++i) to[i] = static_cast<int8_t>(x[i]);
    }
    static int32_t total_ints(Ints x) { return x[0] + x[1] + x[2] + x[3]; }

    template <int> struct Products {
        using Words [[gnu::vector_size(16)]] = int16_t;
        using UnsignedWords [[gnu::vector_size(16)]] = uint16_t;
        Ints sum;
        void start(Ints begin) { sum = begin; }
        // A register has two of the four products of a lane: a product fits in 16 bits, a sum of two does not.
        static Ints sums_of_pairs(Words products) {
            const auto both = reinterpret_cast<Ints>(products);
            return (both >> 16) + ((both << 16) >> 16);
        }
        void add(Bytes codes, Bytes x, int) {
            const auto unsigned_codes = reinterpret_cast<UnsignedWords>(codes),
                       four = reinterpret_cast<UnsignedWords>(x);
            const auto even_codes = reinterpret_cast<Words>(unsigned_codes & uint16_t{255});
            const auto odd_codes = reinterpret_cast<Words>(unsigned_codes >> 8);
            const Words even = reinterpret_cast<Words>(four << 8) >> 8, odd = reinterpret_cast<Words>(four) >> 8;
            sum += sums_of_pairs(even_codes * even) + sums_of_pairs(odd_codes * odd);
        }
        Ints total(int) const { return sum; }
    };
};

} // namespace
} // namespace quire
