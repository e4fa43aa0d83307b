#include "graph/cpu/equivalent_types.h"

#include <ggml.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/matmul/file_blocks.h"

namespace quire {
namespace {

constexpr int block_values = 256; // for all types here but Q1_0
constexpr int most_block_bytes = 110;
constexpr uint16_t f16_one = 0x3c00; // as f16

void put_half(uint8_t *at, uint16_t bits) { std::memcpy(at, &bits, sizeof bits); }

// The factor of a block, in whose place `with` goes.
uint16_t exchange_factor(DType dtype, uint8_t *block, uint16_t with) {
    uint16_t factor = 0;
    if (dtype == DType::iq1_m) { // in the high 4 bits of each 16 of the scales
        for (int i = 0; i < 4; ++i) {
            uint8_t &byte = block[49 + 2 * i];
            factor = static_cast<uint16_t>(factor | byte >> 4 << 4 * i);
            byte = static_cast<uint8_t>((byte & 15) | (with >> 4 * i & 15) << 4);
        }
        return factor;
    }
    const bool is_last = dtype == DType::tq1_0 || dtype == DType::tq2_0;
    uint8_t *at = block + (is_last ? block_bytes(dtype) - sizeof factor : 0);
    factor = half_at(at);
    put_half(at, with);
    return factor;
}

// A block by a factor of one: whatever the factor, subnormal or none, these numbers are exact.
struct Block {
    std::array<uint8_t, most_block_bytes> bytes;
    uint16_t factor;
    std::array<float, block_values> values;

    Block(DType dtype, const uint8_t *from) {
        std::memcpy(bytes.data(), from, block_bytes(dtype));
        factor = exchange_factor(dtype, bytes.data(), f16_one);
        ggml_get_type_traits(static_cast<ggml_type>(dtype))->to_float(bytes.data(), values.data(), block_values);
    }
};

// TQ1_0 and TQ2_0: -1, 0 and 1 times the factor are codes 0 to 2 of Q2_K less a minimum of one.
void write_q2_k(const Block &from, uint8_t *block) {
    std::memset(block, 0x11, 16); // scales and minima
    std::memset(block + 16, 0, 64);
    for (size_t k = 0; k < block_values; ++k) {
        uint8_t &byte = block[16 + k / 128 * 32 + k % 32];
        byte = static_cast<uint8_t>(byte | (static_cast<int>(from.values[k]) + 1) << k % 128 / 32 * 2);
    }
    put_half(block + 80, from.factor);
    put_half(block + 82, from.factor);
}

// Q1_0: 128 signs of one number.
void write_q2_0(const uint8_t *from, uint8_t *to) {
    for (int half = 0; half < 2; ++half, to += 18) {
        std::memcpy(to, from, 2);
        std::memset(to + 2, 0, 16);
        for (int k = 0; k < 64; ++k) {
            const int code = 2 * (from[2 + half * 8 + k / 8] >> k % 8 & 1); // the codes of -1, 0, 1 and 2
            to[2 + k / 4] = static_cast<uint8_t>(to[2 + k / 4] | code << k % 4 * 2);
        }
    }
}

// Values of a type are these, times its factor, an odd number below 32, and a unit: 1/8, or 1/2 with 16 values.
struct Codebook {
    int n;
    std::array<int8_t, 16> values;
    std::array<uint8_t, 256> codes{}; // by value plus 128

    constexpr Codebook(int n, std::array<int8_t, 16> values) : n(n), values(values) {
        for (int i = 0; i < n; ++i)
            codes[static_cast<size_t>(values[static_cast<size_t>(i)] + 128)] = static_cast<uint8_t>(i);
    }
};
constexpr Codebook of_iq1(6, {-9, -7, -1, 1, 7, 9}); // -1, 0 and 1 more or less an eighth
constexpr Codebook of_iq2(6, {-43, -25, -8, 8, 25, 43});
constexpr Codebook of_iq3_xxs(16, {-31, -26, -22, -18, -14, -10, -6, -2, 2, 6, 10, 14, 18, 22, 26, 31});
constexpr Codebook of_iq3_s(16, {-30, -26, -22, -18, -14, -10, -6, -2, 2, 6, 10, 14, 18, 22, 26, 30});

const Codebook &codebook_of(DType dtype) {
    switch (dtype) {
    case DType::iq1_s:
    case DType::iq1_m: return of_iq1;
    case DType::iq3_xxs: return of_iq3_xxs;
    case DType::iq3_s: return of_iq3_s;
    default: return of_iq2;
    }
}

// Half of a scale of 16 columns, rounded down.
int half_scale(DType dtype, const uint8_t *block, int i) {
    const int group = i / 2, half = i % 2;
    switch (dtype) {
    case DType::iq2_xxs: return block[2 + group * 8 + 7] >> 4;
    case DType::iq2_xs: return block[66 + group] >> half * 4 & 15;
    case DType::iq2_s: return block[74 + group] >> half * 4 & 15;
    case DType::iq3_xxs: return block[66 + group * 4 + 3] >> 4;
    case DType::iq3_s: return block[106 + group / 2] >> group % 2 * 4 & 15;
    case DType::iq1_s: return block[34 + group * 2 + 1] >> 4 & 7;
    default: return half_at(block + 48 + i / 4 * 2) >> i % 4 * 3 & 7;
    }
}

void write_codebook(DType dtype, const Block &from, const ChunkLayout &layout, uint8_t *to) {
    const Codebook &book = codebook_of(dtype);
    CodebookBlock block{};
    block.factor = from.factor;
    std::copy(book.values.begin(), book.values.end(), block.values);
    for (int i = 0; i < block_values / 16; ++i) {
        const int scale = 2 * half_scale(dtype, from.bytes.data(), i) + 1;
        block.scales[i * 16 / layout.scale_columns] = static_cast<int8_t>(scale);
        const float inverse = 1.0F / (layout.unit * static_cast<float>(scale));
        for (size_t k = static_cast<size_t>(i) * 16; k < static_cast<size_t>(i + 1) * 16; ++k) {
            const int place = static_cast<int>(from.values[k] * inverse + 128.5F); // above 0: rounded to the nearest
            block.codes[k] = book.codes[static_cast<size_t>(place & 255)];
        }
    }
    std::memcpy(to, &block, sizeof block);
}

} // namespace

std::optional<WeightFormat> equivalent_format(DType dtype) {
    switch (dtype) {
    case DType::tq1_0:
    case DType::tq2_0: return WeightFormat::q2_k;
    case DType::q1_0: return WeightFormat::q2_0;
    case DType::iq1_s:
    case DType::iq1_m:
    case DType::iq2_xxs:
    case DType::iq2_xs:
    case DType::iq2_s: return WeightFormat::codebook_3;
    case DType::iq3_xxs:
    case DType::iq3_s: return WeightFormat::codebook_4;
    default: return std::nullopt;
    }
}

void write_as_equivalent(DType dtype, const uint8_t *row, int64_t n, uint8_t *to) {
    const WeightFormat format = *equivalent_format(dtype);
    const int64_t n_blocks = n / block_size(dtype);
    const int64_t to_bytes = block_size(dtype) / file_block_columns(format) * file_block_bytes(format);
    for (int64_t i = 0; i < n_blocks; ++i, row += static_cast<int64_t>(block_bytes(dtype)), to += to_bytes) {
        switch (format) {
        case WeightFormat::q2_0: write_q2_0(row, to); break;
        case WeightFormat::q2_k: write_q2_k({dtype, row}, to); break;
        default: write_codebook(dtype, {dtype, row}, chunk_layout(format), to);
        }
    }
}

} // namespace quire
