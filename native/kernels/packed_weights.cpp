#include "kernels/packed_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

namespace quire {
namespace {

constexpr int max_columns = 256;
constexpr int max_scales = 16;

// One chunk of one row: the codes, and what scales them, as the layout stores them.
struct RowChunk {
    std::array<uint8_t, max_columns> codes;
    std::array<uint16_t, max_scales> scales; // f16, or bytes
    std::array<uint16_t, max_scales> minima;
    uint16_t factor, minimum_factor; // f16
};

uint16_t half_at(const uint8_t *at) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bits;
}

// Blocks of 32: an f16 scale; with minima an f16 minimum; with 5 bits the fifth ones in 4 bytes; then codes, two in a
// byte, the first half of the block in the low bits.
void read_small_blocks(const ChunkLayout &layout, const uint8_t *block, int64_t block_bytes, int n, RowChunk &to) {
    for (int i = 0; i < n; ++i, block += block_bytes) {
        const uint8_t *at = block;
        uint8_t *codes = to.codes.data() + i * group_columns;
        to.scales[static_cast<size_t>(i)] = half_at(at);
        at += 2;
        if (layout.has_minima) {
            to.minima[static_cast<size_t>(i)] = half_at(at);
            at += 2;
        }
        if (layout.code_bits == 8) {
            for (int k = 0; k < group_columns; ++k) codes[k] = static_cast<uint8_t>(at[k] + 128);
            continue;
        }
        uint32_t high = 0;
        if (layout.code_bits == 5) {
            std::memcpy(&high, at, sizeof high);
            at += 4;
        }
        for (int k = 0; k < 16; ++k) {
            codes[k] = static_cast<uint8_t>((at[k] & 15) | (((high >> k) & 1) << 4));
            codes[k + 16] = static_cast<uint8_t>((at[k] >> 4) | (((high >> (k + 16)) & 1) << 4));
        }
    }
}

// Q4_K and Q5_K: f16 factors of scales and minima, 8 scales and 8 minima of 6 bits in 12 bytes, with 5 bits the fifth
// ones in 32 bytes (bit i of byte k: group i, column k), then codes: byte k of 32 has column k of two groups.
void read_k_block(const ChunkLayout &layout, const uint8_t *block, RowChunk &to) {
    to.factor = half_at(block);
    to.minimum_factor = half_at(block + 2);
    const uint8_t *packed = block + 4;
    for (size_t g = 0; g < 8; ++g) {
        const size_t low = g % 4;
        if (g < 4) {
            to.scales[g] = packed[low] & 63;
            to.minima[g] = packed[low + 4] & 63;
        } else {
            to.scales[g] = static_cast<uint16_t>((packed[low + 8] & 15) | ((packed[low] >> 6) << 4));
            to.minima[g] = static_cast<uint16_t>((packed[low + 8] >> 4) | ((packed[low + 4] >> 6) << 4));
        }
    }
    const uint8_t *high = block + 16;
    const uint8_t *codes = layout.code_bits == 5 ? high + 32 : high;
    for (int g = 0; g < 8; ++g) {
        for (int k = 0; k < 32; ++k) {
            const int low = (codes[g / 2 * 32 + k] >> (g % 2 * 4)) & 15;
            const int fifth = layout.code_bits == 5 ? (high[k] >> g) & 1 : 0;
            to.codes[static_cast<size_t>(g * 32 + k)] = static_cast<uint8_t>(low | (fifth << 4));
        }
    }
}

// Q6_K, in halves of 128 columns: 64 bytes with the low 4 bits (columns k and k + 64 in byte k), 32 with the high 2
// (columns k, k + 32, k + 64, k + 96 in byte k); 16 scales of int8; an f16 factor.
void read_q6_k(const uint8_t *block, RowChunk &to) {
    for (int half = 0; half < 2; ++half) {
        const uint8_t *low = block + half * 64, *high = block + 128 + half * 32;
        for (int k = 0; k < 128; ++k) {
            const int low_bits = (low[k % 64] >> (k / 64 * 4)) & 15;
            const int high_bits = (high[k % 32] >> (k / 32 * 2)) & 3;
            to.codes[static_cast<size_t>(half * 128 + k)] = static_cast<uint8_t>(low_bits | (high_bits << 4));
        }
    }
    for (size_t i = 0; i < 16; ++i) to.scales[i] = block[192 + i];
    to.factor = half_at(block + 208);
}

// Q3_K: high bits in 32 bytes (bit i of byte k: column 32 i + k), then in halves of 128 columns 32 bytes with the low 2
// bits (columns k, k + 32, k + 64, k + 96 in byte k), 16 scales of 6 bits (32 is zero) in 12 bytes, an f16 factor.
void read_q3_k(const uint8_t *block, RowChunk &to) {
    const uint8_t *low = block + 32, *packed = block + 96;
    for (int k = 0; k < 256; ++k) {
        const int low_bits = (low[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2)) & 3;
        const int high_bit = (block[k % 32] >> (k / 32)) & 1;
        to.codes[static_cast<size_t>(k)] = static_cast<uint8_t>(low_bits | (high_bit << 2));
    }
    for (size_t i = 0; i < 16; ++i) {
        const int low_bits = (packed[i % 8] >> (i / 8 * 4)) & 15;
        const int high_bits = (packed[8 + i % 4] >> (i / 4 * 2)) & 3;
        to.scales[i] = static_cast<uint8_t>((low_bits | (high_bits << 4)) - 32);
    }
    to.factor = half_at(block + 108);
}

// IQ4_XS: an f16 factor; scales of 6 bits (32 is zero), the high 2 of group i in bits 2i of 16, the low 4 in 4 bytes;
// codes as in blocks of 32.
void read_iq4_xs(const uint8_t *block, RowChunk &to) {
    to.factor = half_at(block);
    const uint16_t high = half_at(block + 2);
    for (size_t g = 0; g < 8; ++g) {
        const int low_bits = (block[4 + g / 2] >> (g % 2 * 4)) & 15, high_bits = (high >> (2 * g)) & 3;
        to.scales[g] = static_cast<uint8_t>((low_bits | (high_bits << 4)) - 32);
        for (size_t k = 0; k < 16; ++k) {
            const uint8_t pair = block[8 + g * 16 + k];
            to.codes[g * 32 + k] = pair & 15;
            to.codes[g * 32 + k + 16] = pair >> 4;
        }
    }
}

// Q2_K: 16 scales and minima of 4 bits each, in one byte; in halves of 128 columns 32 bytes with the codes (columns k,
// k + 32, k + 64, k + 96 in byte k); f16 factors of scales and minima.
void read_q2_k(const uint8_t *block, RowChunk &to) {
    for (int k = 0; k < 256; ++k) {
        const int bits = block[16 + k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2);
        to.codes[static_cast<size_t>(k)] = static_cast<uint8_t>(bits & 3);
    }
    for (size_t i = 0; i < 16; ++i) to.scales[i] = block[i];
    to.factor = half_at(block + 80);
    to.minimum_factor = half_at(block + 82);
}

// Two codes in a byte, `n` columns, the first half of them in the low bits.
void read_pairs(const uint8_t *from, int n, uint8_t *codes) {
    for (int k = 0; k < n / 2; ++k) {
        codes[k] = from[k] & 15;
        codes[k + n / 2] = from[k] >> 4;
    }
}

// MXFP4: a byte of exponent, 32 codes.
void read_mxfp4(const uint8_t *block, int n_blocks, RowChunk &to) {
    for (int i = 0; i < n_blocks; ++i, block += 17) {
        to.scales[static_cast<size_t>(i)] = block[0];
        read_pairs(block + 1, 32, to.codes.data() + i * 32);
    }
}

// NVFP4: 4 scales, of which 127 stands for zero, and 4 times 16 codes.
void read_nvfp4(const uint8_t *block, RowChunk &to) {
    for (size_t i = 0; i < 4; ++i) {
        to.scales[i] = block[i] == 127 ? 0 : block[i] & 127;
        read_pairs(block + 4 + i * 8, 16, to.codes.data() + i * 16);
    }
}

void read_chunk(WeightFormat format, const uint8_t *blocks, int n_blocks, RowChunk &to) {
    const ChunkLayout layout = chunk_layout(format);
    // Columns behind the last: zero codes and scales, and zero activations.
    to = {};
    switch (format) {
    case WeightFormat::q4_k:
    case WeightFormat::q5_k: return read_k_block(layout, blocks, to);
    case WeightFormat::q6_k: return read_q6_k(blocks, to);
    case WeightFormat::q3_k: return read_q3_k(blocks, to);
    case WeightFormat::q2_k: return read_q2_k(blocks, to);
    case WeightFormat::mxfp4: return read_mxfp4(blocks, n_blocks, to);
    case WeightFormat::nvfp4: return read_nvfp4(blocks, to);
    case WeightFormat::iq4_xs: return read_iq4_xs(blocks, to);
    default: return read_small_blocks(layout, blocks, file_block_bytes(format), n_blocks, to);
    }
}

void merge(uint8_t *at, uint32_t bytes) {
    uint32_t there;
    std::memcpy(&there, at, sizeof there);
    there |= bytes;
    std::memcpy(at, &there, sizeof there);
}

// The four codes of a step at a time, a byte each.
template <int code_bits> void write_codes(const ChunkLayout &layout, const RowChunk &from, int row, uint8_t *chunk) {
    uint8_t *low = chunk + row * step_columns, *high = low + layout.low_bytes();
    for (int column = 0; column < layout.columns; column += step_columns) {
        const int group = column / group_columns, step = column % group_columns / step_columns;
        uint32_t codes;
        std::memcpy(&codes, from.codes.data() + column, sizeof codes);
        // Registers with one step, two, four and eight steps.
        const int one = (group * group_steps + step) * register_bytes, two = (group * 4 + step / 2) * register_bytes;
        const int four = (group * 2 + step / 4) * register_bytes, eight = group * register_bytes;
        if constexpr (code_bits == 8) merge(low + one, codes);
        if constexpr (code_bits <= 3) merge(low + four, (codes & 0x03030303U) << (step % 4 * 2));
        if constexpr (code_bits == 3) merge(high + eight, ((codes >> 2) & 0x01010101U) << step);
        if constexpr (code_bits >= 4 && code_bits <= 6) merge(low + two, (codes & 0x0f0f0f0fU) << (step % 2 * 4));
        if constexpr (code_bits == 5) merge(high + eight, ((codes >> 4) & 0x01010101U) << step);
        if constexpr (code_bits == 6) merge(high + four, ((codes >> 4) & 0x03030303U) << (step % 4 * 2));
    }
}

void write_codes(const ChunkLayout &layout, const RowChunk &from, int row, uint8_t *chunk) {
    switch (layout.code_bits) {
    case 2: return write_codes<2>(layout, from, row, chunk);
    case 3: return write_codes<3>(layout, from, row, chunk);
    case 4: return write_codes<4>(layout, from, row, chunk);
    case 5: return write_codes<5>(layout, from, row, chunk);
    case 6: return write_codes<6>(layout, from, row, chunk);
    default: return write_codes<8>(layout, from, row, chunk);
    }
}

void write_scales(const ChunkLayout &layout, const RowChunk &from, int row, uint8_t *chunk) {
    auto put_half = [&](int at, uint16_t value) { std::memcpy(chunk + at + row * 2, &value, 2); };
    for (int i = 0; i < layout.n_scales(); ++i) {
        const uint16_t scale = from.scales[static_cast<size_t>(i)], minimum = from.minima[static_cast<size_t>(i)];
        if (layout.scales == ScaleForm::halves) {
            put_half(layout.scales_at() + i * tile_rows * 2, scale);
            if (layout.has_minima) put_half(layout.minima_at() + i * tile_rows * 2, minimum);
            continue;
        }
        chunk[layout.scales_at() + i * tile_rows + row] = static_cast<uint8_t>(scale);
        if (layout.scales == ScaleForm::bytes)
            chunk[layout.minima_at() + i * tile_rows + row] = static_cast<uint8_t>(minimum);
    }
    if (!layout.has_two_levels()) return;
    put_half(layout.factors_at(), from.factor);
    put_half(layout.factors_at() + tile_rows * 2, from.minimum_factor);
}

int code_at(const ChunkLayout &layout, const uint8_t *chunk, int lane_row, int column) {
    const int group = column / group_columns, step = column % group_columns / step_columns;
    const int lane = lane_row * step_columns + column % step_columns;
    if (layout.code_bits == 8) return chunk[(group * group_steps + step) * register_bytes + lane];
    const uint8_t *high = chunk + layout.low_bytes();
    if (layout.code_bits <= 3) {
        const int low = (chunk[(group * 2 + step / 4) * register_bytes + lane] >> (step % 4 * 2)) & 3;
        return layout.code_bits == 2 ? low : low | (((high[group * register_bytes + lane] >> step) & 1) << 2);
    }
    const int low = (chunk[(group * 4 + step / 2) * register_bytes + lane] >> (step % 2 * 4)) & 15;
    if (layout.has_table()) return layout.table()[low] + layout.zero_point;
    if (layout.code_bits == 5) return low | (((high[group * register_bytes + lane] >> step) & 1) << 4);
    if (layout.code_bits == 6)
        return low | (((high[(group * 2 + step / 4) * register_bytes + lane] >> (step % 4 * 2)) & 3) << 4);
    return low;
}

float half_to_float(uint16_t bits) {
    const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    float value = std::ldexp(static_cast<float>(fraction), -24);
    if (exponent == 31) {
        value = fraction == 0 ? INFINITY : NAN;
    } else if (exponent > 0) {
        value = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    }
    return (bits & 0x8000) != 0 ? -value : value;
}

float small_number(ScaleForm form, uint8_t byte) {
    switch (form) {
    case ScaleForm::signed_bytes: return static_cast<float>(static_cast<int8_t>(byte));
    case ScaleForm::nibbles: return static_cast<float>(byte & 15);
    case ScaleForm::powers: return std::ldexp(1.0F, byte - 128);
    case ScaleForm::minifloats:
        return byte < 8 ? std::ldexp(static_cast<float>(byte), -10)
                        : std::ldexp(static_cast<float>(8 + byte % 8), byte / 8 - 11);
    default: return static_cast<float>(byte);
    }
}

// Scale i of a row.
float scale_at(const ChunkLayout &layout, const uint8_t *chunk, int i, int lane_row) {
    const int at = i * tile_rows + lane_row;
    if (layout.scales == ScaleForm::halves) return half_to_float(half_at(chunk + layout.scales_at() + at * 2));
    const float small = small_number(layout.scales, chunk[layout.scales_at() + at]);
    if (!layout.has_two_levels()) return small;
    return half_to_float(half_at(chunk + layout.factors_at() + lane_row * 2)) * small;
}

// What is added to the values of a scale.
float minimum_at(const ChunkLayout &layout, const uint8_t *chunk, int i, int lane_row) {
    const int at = i * tile_rows + lane_row;
    if (layout.scales == ScaleForm::halves) return half_to_float(half_at(chunk + layout.minima_at() + at * 2));
    const uint8_t byte = chunk[layout.minima_at() + at];
    const int small = layout.scales == ScaleForm::nibbles ? byte >> 4 : byte;
    const float factor = half_to_float(half_at(chunk + layout.factors_at() + (tile_rows + lane_row) * 2));
    return -(factor * static_cast<float>(small));
}

// To the nearest, ties to even.
uint16_t half_to_bf16(uint16_t half) {
    const float value = half_to_float(half);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class Value, class Convert>
void transpose(const PackedWeights &packed, const uint8_t *rows, int64_t tile, uint8_t *to, Convert convert) {
    const auto *from = reinterpret_cast<const Value *>(rows);
    auto *values = reinterpret_cast<Value *>(to);
    const int64_t first = tile * float_tile_rows, n = std::min<int64_t>(float_tile_rows, packed.n_out - first);
    std::memset(to, 0, static_cast<size_t>(packed.tile_bytes()));
    // Some columns at a time, so that both sides stay in the first-level cache.
    constexpr int64_t run = 32;
    for (int64_t begin = 0; begin < packed.n_in; begin += run) {
        const int64_t end = std::min(begin + run, packed.n_in);
        for (int64_t r = 0; r < n; ++r) {
            for (int64_t k = begin; k < end; ++k)
                values[float_at(packed.format, k, r)] = convert(from[(first + r) * packed.n_in + k]);
        }
    }
}

void pack_float_tile(const PackedWeights &packed, const uint8_t *rows, int64_t tile, uint8_t *to) {
    // Looked up: there are few halves, and conversion by itself takes longer than reading a file.
    static const std::vector<uint16_t> rounded = [] {
        std::vector<uint16_t> table(65536);
        for (size_t half = 0; half < table.size(); ++half) table[half] = half_to_bf16(static_cast<uint16_t>(half));
        return table;
    }();
    auto same = [](auto value) { return value; };
    if (packed.format == WeightFormat::f32) return transpose<uint32_t>(packed, rows, tile, to, same);
    if (!packed.is_rounded) return transpose<uint16_t>(packed, rows, tile, to, same);
    transpose<uint16_t>(packed, rows, tile, to, [](uint16_t half) { return rounded[half]; });
}

void unpack_float_row(const PackedWeights &packed, int64_t row, float *to) {
    const uint8_t *tile = packed.data + row / float_tile_rows * packed.tile_bytes();
    const int64_t value_bytes = packed.format == WeightFormat::f32 ? 4 : 2;
    for (int64_t k = 0; k < packed.n_in; ++k) {
        const uint8_t *at = tile + float_at(packed.format, k, row % float_tile_rows) * value_bytes;
        if (packed.format == WeightFormat::f32) {
            std::memcpy(to + k, at, sizeof(float));
        } else if (packed.format == WeightFormat::f16) {
            to[k] = half_to_float(half_at(at));
        } else {
            const uint32_t bits = static_cast<uint32_t>(half_at(at)) << 16;
            std::memcpy(to + k, &bits, sizeof bits);
        }
    }
}

} // namespace

void unpack_row(const PackedWeights &packed, int64_t row, float *to) {
    if (packed.is_float()) return unpack_float_row(packed, row, to);
    const ChunkLayout layout = chunk_layout(packed.format);
    const uint8_t *chunk = packed.data + row / tile_rows * packed.tile_bytes();
    const int lane_row = static_cast<int>(row % tile_rows);
    for (int64_t begin = 0; begin < packed.n_in; begin += layout.columns, chunk += layout.bytes()) {
        for (int column = 0; column < layout.columns && begin + column < packed.n_in; ++column) {
            const int i = column / layout.scale_columns;
            const int code = code_at(layout, chunk, lane_row, column);
            float value = scale_at(layout, chunk, i, lane_row) * static_cast<float>(code - layout.zero_point);
            if (layout.has_minima) value += minimum_at(layout, chunk, i, lane_row);
            to[begin + column] = value;
        }
    }
}

int64_t file_block_columns(WeightFormat format) {
    if (format <= WeightFormat::bf16) return 1;
    if (format == WeightFormat::nvfp4) return 64;
    return chunk_layout(format).columns == 256 ? 256 : 32;
}

int64_t file_block_bytes(WeightFormat format) {
    switch (format) {
    case WeightFormat::q4_0: return 18;
    case WeightFormat::q4_1: return 20;
    case WeightFormat::q5_0: return 22;
    case WeightFormat::q5_1: return 24;
    case WeightFormat::q8_0: return 34;
    case WeightFormat::q4_k: return 144;
    case WeightFormat::q5_k: return 176;
    case WeightFormat::q6_k: return 210;
    case WeightFormat::q2_k: return 84;
    case WeightFormat::q3_k: return 110;
    case WeightFormat::iq4_nl: return 18;
    case WeightFormat::iq4_xs: return 136;
    case WeightFormat::mxfp4: return 17;
    case WeightFormat::nvfp4: return 36;
    case WeightFormat::f32: return 4;
    case WeightFormat::f16:
    case WeightFormat::bf16: return 2;
    }
    return 0;
}

void pack_tile(const PackedWeights &packed, const uint8_t *rows, int64_t tile, uint8_t *to) {
    if (packed.is_float()) return pack_float_tile(packed, rows, tile, to);
    const ChunkLayout layout = chunk_layout(packed.format);
    const int64_t block_bytes = file_block_bytes(packed.format);
    const int64_t row_blocks = packed.n_in / file_block_columns(packed.format);
    const int64_t chunk_blocks = layout.columns / file_block_columns(packed.format);
    std::memset(to, 0, static_cast<size_t>(packed.tile_bytes()));
    RowChunk row_chunk;
    for (int row = 0; row < tile_rows && tile * tile_rows + row < packed.n_out; ++row) {
        const uint8_t *blocks = rows + (tile * tile_rows + row) * row_blocks * block_bytes;
        for (int64_t c = 0; c < packed.n_chunks(); ++c) {
            const int64_t first = c * chunk_blocks;
            const int n = static_cast<int>(first + chunk_blocks <= row_blocks ? chunk_blocks : row_blocks - first);
            read_chunk(packed.format, blocks + first * block_bytes, n, row_chunk);
            write_codes(layout, row_chunk, row, to + c * layout.bytes());
            write_scales(layout, row_chunk, row, to + c * layout.bytes());
        }
    }
}

} // namespace quire
