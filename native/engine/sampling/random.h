// Counter-based random numbers: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3" (2011).  No state: the same key and counter give the same numbers wherever and whenever they are asked for.
#pragma once

#include <array>
#include <cstdint>

namespace quire {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = 0xD2511F53ull * counter[0];
        const uint64_t b = 0xCD9E8D57ull * counter[2];
        counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
                   static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
        key[0] += 0x9E3779B9u; // golden ratio
        key[1] += 0xBB67AE85u; // sqrt(3) - 1
    }
    return counter;
}

// The two numbers in [0, 1) that drawing one token may use.
struct TokenRandom {
    double draw; // which token
    double xtc;  // decides if top choices are excluded
};

inline TokenRandom token_random(uint64_t seed, uint32_t choice, uint64_t position) {
    const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
    const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
    const auto unit = [](uint32_t a, uint32_t b) { return ((a >> 5) * 67108864.0 + (b >> 6)) * 0x1p-53; };
    const PhiloxCounter bits = philox4x32_10({low(position), high(position), choice, 0}, {low(seed), high(seed)});
    return {unit(bits[0], bits[1]), unit(bits[2], bits[3])};
}

} // namespace quire
