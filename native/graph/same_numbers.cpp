#include "graph/same_numbers.h"

#include <ggml.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace quire {
namespace {

constexpr int block_values = 256;

// Codes of up to 256 values that are multiples of `unit`, as ggml dequantizes them.
using Codes = std::array<int, block_values>;

void find_codes(const float *values, int n, float unit, int *codes) {
    // Where the unit is none, so are the values, whatever their codes.
    const bool is_one = std::isfinite(unit) && unit != 0.0F;
    for (int i = 0; i < n; ++i) codes[i] = is_one ? static_cast<int>(std::lrintf(values[i] / unit)) : 0;
}

ggml_fp16_t half_at(const uint8_t *at) {
    ggml_fp16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bits;
}

void put_half(uint8_t *at, ggml_fp16_t bits) { std::memcpy(at, &bits, sizeof bits); }

// TQ1_0 and TQ2_0, whose scale comes last: -1, 0 and 1 times the scale are codes 0 to 2 of Q2_K less a minimum of one.
void to_q2_k(const float *values, ggml_fp16_t scale, uint8_t *block) {
    Codes codes;
    find_codes(values, block_values, ggml_fp16_to_fp32(scale), codes.data());
    std::memset(block, 0x11, 16); // scales and minima
    std::memset(block + 16, 0, 64);
    for (int k = 0; k < block_values; ++k) {
        uint8_t &byte = block[16 + k / 128 * 32 + k % 32];
        byte = static_cast<uint8_t>(byte | (codes[static_cast<size_t>(k)] + 1) << k % 128 / 32 * 2);
    }
    put_half(block + 80, scale);
    put_half(block + 82, scale);
}

// Q2_0: -1 to 2 times the scale, 64 of them in two blocks of Q4_0.
void to_q4_0(const float *values, ggml_fp16_t scale, uint8_t *blocks) {
    Codes codes;
    find_codes(values, 64, ggml_fp16_to_fp32(scale), codes.data());
    for (size_t i = 0; i < 2; ++i, blocks += 18) {
        put_half(blocks, scale);
        for (size_t k = 0; k < 16; ++k)
            blocks[2 + k] = static_cast<uint8_t>((codes[i * 32 + k] + 8) | (codes[i * 32 + 16 + k] + 8) << 4);
    }
}

// IQ3_S: odd numbers from -15 to 15, times an odd scale of up to 31 for 32 values, times a factor.  Q5_K has codes of 5
// bits less 16, times the same, as a minimum.
void iq3_s_to_q5_k(const float *values, const uint8_t *from, uint8_t *block) {
    const ggml_fp16_t factor = half_at(from);
    const float whole = ggml_fp16_to_fp32(factor), sixteen = whole * 16.0F;
    if (std::fabs(sixteen) > 65504.0F)
        throw UnsupportedError("weights", cat("scales of iq3_s must be at most 4094 but one is ", whole));
    put_half(block, factor);
    put_half(block + 2, ggml_fp32_to_fp16(sixteen));
    uint8_t *packed = block + 4, *fifth = block + 16, *low = fifth + 32;
    std::memset(packed, 0, 12 + 32 + 128);
    for (int g = 0; g < 8; ++g) {
        const int scale = 1 + 2 * (from[106 + g / 2] >> (g % 2 * 4) & 15);
        if (g < 4) {
            packed[g] = static_cast<uint8_t>(packed[g] | scale);
            packed[g + 4] = static_cast<uint8_t>(packed[g + 4] | scale);
        } else {
            // Their high 2 bits go on top of the first ones', which have none there.
            packed[g + 4] = static_cast<uint8_t>((scale & 15) | (scale & 15) << 4);
            packed[g - 4] = static_cast<uint8_t>(packed[g - 4] | scale >> 4 << 6);
            packed[g] = static_cast<uint8_t>(packed[g] | scale >> 4 << 6);
        }
        int codes[32];
        find_codes(values + g * 32, 32, whole * static_cast<float>(scale), codes);
        for (int k = 0; k < 32; ++k) {
            const int code = codes[k] + 16;
            uint8_t &byte = low[g / 2 * 32 + k];
            byte = static_cast<uint8_t>(byte | (code & 15) << g % 2 * 4);
            fifth[k] = static_cast<uint8_t>(fifth[k] | code >> 4 << g);
        }
    }
}

} // namespace

std::optional<DType> type_of_same_numbers(DType dtype) {
    switch (dtype) {
    case DType::tq1_0:
    case DType::tq2_0: return DType::q2_k;
    case DType::q2_0: return DType::q4_0;
    case DType::iq3_s: return DType::q5_k;
    default: return std::nullopt;
    }
}

void write_same_numbers(DType dtype, const uint8_t *row, int64_t n, uint8_t *to) {
    static thread_local std::vector<float> values;
    values.resize(static_cast<size_t>(n));
    ggml_get_type_traits(static_cast<ggml_type>(dtype))->to_float(row, values.data(), n);
    const auto from_bytes = static_cast<int64_t>(block_bytes(dtype)), of_block = block_size(dtype);
    const auto to_bytes = static_cast<int64_t>(row_bytes(*type_of_same_numbers(dtype), of_block));
    for (int64_t i = 0; i < n / of_block; ++i, row += from_bytes, to += to_bytes) {
        const float *some = values.data() + i * of_block;
        switch (dtype) {
        case DType::q2_0: to_q4_0(some, half_at(row), to); break;
        case DType::iq3_s: iq3_s_to_q5_k(some, row, to); break;
        default: to_q2_k(some, half_at(row + from_bytes - 2), to);
        }
    }
}

} // namespace quire
