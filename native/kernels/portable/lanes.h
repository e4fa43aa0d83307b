// Four lanes in plain C++.
#pragma once

#include <cstdint>

namespace quire {
namespace {

struct Lanes {
    struct Vec {
        float lane[4];
    };
    struct F16 {
        uint16_t bits;
    };
    struct Bf16 {
        uint16_t bits;
    };
    static constexpr int width = 4;
    static constexpr int registers = 16; // vector registers

    static float from_bits(uint32_t bits) {
        float value;
        __builtin_memcpy(&value, &bits, sizeof value);
        return value;
    }
    static uint32_t to_bits(float value) {
        uint32_t bits;
        __builtin_memcpy(&bits, &value, sizeof bits);
        return bits;
    }

    static float to_f32(float x) { return x; }
    static float to_f32(int8_t x) { return x; }
    static float to_f32(Bf16 x) { return from_bits(static_cast<uint32_t>(x.bits) << 16); }
    static float to_f32(F16 x) {
        const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000U) << 16;
        const uint32_t rest = x.bits & 0x7fffU;
        if (rest >= 0x7c00U) return from_bits(sign | 0x7f800000U | (rest & 0x3ffU) << 13);
        // Subnormal numbers are multiples of 2^-24.
        if (rest < 0x400U) return from_bits(sign | to_bits(static_cast<float>(rest) * 0x1p-24F));
        return from_bits(sign | ((rest << 13) + 0x38000000U));
    }

    template <class Function> static Vec make(Function function) {
        Vec result;
        for (int i = 0; i < width; ++i) result.lane[i] = function(i);
        return result;
    }
    static Vec set(float x) { return {{x, x, x, x}}; }
    template <class T> static Vec load(const T *p) {
        return make([p](int i) { return to_f32(p[i]); });
    }
    // Load the even or the odd numbers of `width` pairs.
    static Vec load_even(const Bf16 *p) {
        return make([p](int i) { return to_f32(p[2 * i]); });
    }
    static Vec load_odd(const Bf16 *p) {
        return make([p](int i) { return to_f32(p[2 * i + 1]); });
    }
    template <class T> static Vec load_part(const T *p, int n) {
        return make([p, n](int i) { return i < n ? to_f32(p[i]) : 0.0F; });
    }

    // Dot products of four codes per lane with four codes of a query.
    struct Ints {
        int32_t lane[width];
    };
    struct Codes {
        int8_t lane[width][4];
    };
    static Ints begin_dot(int) { return {}; }
    static Codes load_keys(const int8_t *p) {
        Codes keys;
        __builtin_memcpy(&keys, p, sizeof keys);
        return keys;
    }
    static Codes set_query(const void *four) {
        Codes query;
        for (auto &lane : query.lane) __builtin_memcpy(lane, four, sizeof lane);
        return query;
    }
    static Ints add_dot(Ints sum, const Codes &key, const Codes &query) {
        for (int i = 0; i < width; ++i) {
            for (int j = 0; j < 4; ++j) sum.lane[i] += key.lane[i][j] * query.lane[i][j];
        }
        return sum;
    }
    static Vec to_floats(const Ints &x) {
        return make([&](int i) { return static_cast<float>(x.lane[i]); });
    }

    static void store(float *p, const Vec &x) {
        for (int i = 0; i < width; ++i) p[i] = x.lane[i];
    }
    static Vec add(const Vec &a, const Vec &b) {
        return make([&](int i) { return a.lane[i] + b.lane[i]; });
    }
    static Vec sub(const Vec &a, const Vec &b) {
        return make([&](int i) { return a.lane[i] - b.lane[i]; });
    }
    static Vec mul(const Vec &a, const Vec &b) {
        return make([&](int i) { return a.lane[i] * b.lane[i]; });
    }
    static Vec div(const Vec &a, const Vec &b) {
        return make([&](int i) { return a.lane[i] / b.lane[i]; });
    }
    static Vec fma(const Vec &a, const Vec &b, const Vec &c) {
        return make([&](int i) { return a.lane[i] * b.lane[i] + c.lane[i]; });
    }
    // Returns the second operand if one is NaN, like the other instruction sets.
    static Vec max(const Vec &a, const Vec &b) {
        return make([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static Vec min(const Vec &a, const Vec &b) {
        return make([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    static Vec round(const Vec &x) {
        // Adding 1.5 * 2^23 leaves no bits for a fraction; for |x| < 2^22.
        return make([&](int i) { return (x.lane[i] + 0x1.8p23F) - 0x1.8p23F; });
    }
    static Vec power_of_two(const Vec &n) {
        return make([&](int i) { return from_bits(static_cast<uint32_t>(static_cast<int>(n.lane[i]) + 127) << 23); });
    }
    static Vec times_power_of_two(Vec x, Vec n) { return mul(power_of_two(n), x); }
    static Vec zero_where_below(const Vec &x, float limit, const Vec &value) {
        return make([&](int i) { return x.lane[i] < limit ? 0.0F : value.lane[i]; });
    }
    static float first(const Vec &x) { return x.lane[0]; }
    static float total(const Vec &x) { return (x.lane[0] + x.lane[2]) + (x.lane[1] + x.lane[3]); }
    static float largest(const Vec &x) {
        float found = x.lane[0];
        for (int i = 1; i < width; ++i) found = found > x.lane[i] ? found : x.lane[i];
        return found;
    }
};

} // namespace
} // namespace quire
