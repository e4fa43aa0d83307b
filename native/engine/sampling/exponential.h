// exp for arrays of float, in a form that compilers turn into vector code without -ffast-math.
#pragma once

#include <bit>
#include <cstdint>

namespace quire {

// e^x for x <= 0, within 3e-7 of it; 0 below -87.
inline float exp_nonpositive(float x) {
    const float shifted = x * 1.44269504f + 12582912.0f; // 1.5 * 2^23: adding it rounds to a whole number
    const float whole = shifted - 12582912.0f;
    const uint32_t power = std::bit_cast<uint32_t>(shifted) - 0x4B400000u;
    const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f; // ln 2 in two parts; |r| <= ln(2) / 2
    // Taylor's series; the next term is below 6e-9.
    float sum = 1.0f / 5040;
    sum = sum * r + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    const uint32_t bits = std::bit_cast<uint32_t>(sum) + (power << 23);
    const uint32_t mask = 0u - static_cast<uint32_t>(x >= -87.0f); // no branch: a loop over it stays a vector loop
    return std::bit_cast<float>(bits & mask);
}

} // namespace quire
