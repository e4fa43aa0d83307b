// Registers of 16 bytes of codes in plain C++.
#pragma once

#include "kernels/matmul/matmul_kernels.h"
#include "kernels/portable/lanes.h"

namespace quire {
namespace {

struct CodeLanes : Lanes {
    struct Bytes {
        uint8_t lane[16];
    };
    struct Ints {
        int32_t lane[4];
    };
    static constexpr BlockShape few{0, 0}, unpacked{2, 1};
    static constexpr int max_packed_rows(const ChunkLayout &) { return 0; }
    static constexpr bool signed_codes = false;
    static constexpr int code_class(int) { return 255; }

    template <class Function> static Bytes make_bytes(Function function) {
        Bytes result;
        for (int i = 0; i < 16; ++i) result.lane[i] = static_cast<uint8_t>(function(i));
        return result;
    }
    template <class Function> static Ints make_ints(Function function) {
        Ints result;
        for (int i = 0; i < width; ++i) result.lane[i] = function(i);
        return result;
    }

    static Bytes load_bytes(const uint8_t *at) {
        return make_bytes([=](int i) { return at[i]; });
    }
    static void store_bytes(uint8_t *at, const Bytes &x) { __builtin_memcpy(at, x.lane, sizeof x.lane); }
    static Bytes four(const int8_t *at) {
        return make_bytes([=](int i) { return at[i % 4]; });
    }
    // The bits of `mask` in each byte, after moving them by `left`.
    static Bytes shifted(const Bytes &x, int left, int mask) {
        return make_bytes([&](int i) { return (left >= 0 ? x.lane[i] << left : x.lane[i] >> -left) & mask; });
    }
    static Bytes either(const Bytes &a, const Bytes &b) {
        return make_bytes([&](int i) { return a.lane[i] | b.lane[i]; });
    }
    static Bytes flip_sign(const Bytes &x) {
        return make_bytes([&](int i) { return x.lane[i] ^ 128; });
    }
    static Bytes add_to_bytes(const Bytes &x, int offset) {
        return make_bytes([&](int i) { return x.lane[i] + offset; });
    }
    static Bytes looked_up(const int8_t *table, int zero_point, const Bytes &low) {
        return make_bytes([&](int i) { return table[low.lane[i]] + zero_point; });
    }

    static Ints set_ints(int32_t x) {
        return make_ints([=](int) { return x; });
    }
    static Ints shifted_left(const Ints &x, int n) {
        return make_ints([&](int i) { return static_cast<int32_t>(static_cast<uint32_t>(x.lane[i]) << n); });
    }
    static Ints widen_bytes(const uint8_t *at) {
        return make_ints([=](int i) { return int32_t{at[i]}; });
    }
    static Ints widen_signed_bytes(const uint8_t *at) {
        return make_ints([=](int i) { return int32_t{static_cast<int8_t>(at[i])}; });
    }
    static Ints low_nibbles(const Ints &x) {
        return make_ints([&](int i) { return x.lane[i] & 15; });
    }
    static Ints high_nibbles(const Ints &x) {
        return make_ints([&](int i) { return x.lane[i] >> 4; });
    }
    static Vec to_floats(const Ints &x) {
        return make([&](int i) { return static_cast<float>(x.lane[i]); });
    }
    static Vec from_bits(const Ints &x) {
        return make([&](int i) { return Lanes::from_bits(static_cast<uint32_t>(x.lane[i])); });
    }
    // 2^(x - 128), also where that is subnormal.
    static Vec power(const Ints &x) {
        const auto factor = [](int n) { return Lanes::from_bits(static_cast<uint32_t>(n + 63) << 23); };
        return make([&](int i) { return factor(x.lane[i] / 2) * factor(x.lane[i] - x.lane[i] / 2); });
    }
    // Rounded once, as the instructions of the others do it.
    static Vec fused(const Vec &a, const Vec &b, const Vec &c) {
        return make([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
    }
    static void store_part(float *to, const Vec &x, int n) {
        for (int i = 0; i < n; ++i) to[i] = x.lane[i];
    }

    // To the nearest code, from -127 to 127; what is not a number gets the lowest.
    static Ints rounded(const Vec &x) {
        const Vec limited = min(max(x, set(-127.0F)), set(127.0F));
        const Vec whole = round(limited);
        return make_ints([&](int i) { return static_cast<int32_t>(whole.lane[i]); });
    }
    static void store_codes(int8_t *to, const Ints &x) {
        for (int i = 0; i < width; ++i) to[i] = static_cast<int8_t>(x.lane[i]);
    }
    static int32_t total_ints(const Ints &x) { return x.lane[0] + x.lane[1] + x.lane[2] + x.lane[3]; }

    template <int> struct Products {
        Ints sum;
        void start(const Ints &begin) { sum = begin; }
        void add(const Bytes &codes, const Bytes &x, int) {
            for (int i = 0; i < width; ++i) {
                for (int k = 0; k < 4; ++k)
                    sum.lane[i] += codes.lane[i * 4 + k] * static_cast<int8_t>(x.lane[i * 4 + k]);
            }
        }
        const Ints &total(int) const { return sum; }
    };
};

} // namespace
} // namespace quire
