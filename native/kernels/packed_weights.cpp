#include "kernels/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/file_blocks.h"

namespace quire {
namespace {

void merge(uint8_t *at, uint32_t bytes) {
    uint32_t there;
    std::memcpy(&there, at, sizeof there);
    there |= bytes;
    std::memcpy(at, &there, sizeof there);
}

// The four codes of a step at a time, a byte each.
template <int low_bits, int high_bits>
void write_codes(const ChunkLayout &layout, const RowChunk &from, int row, uint8_t *chunk) {
    constexpr uint32_t each = 0x01010101U;
    for (int column = 0; column < layout.columns; column += step_columns) {
        const int group = column / group_columns, step = column % group_columns / step_columns;
        uint32_t codes;
        std::memcpy(&codes, from.codes.data() + column, sizeof codes);
        const uint32_t low = codes & each * ((1U << low_bits) - 1);
        merge(chunk + layout.low_at(group, step) + row * step_columns, low << layout.low_shift(step));
        if constexpr (high_bits > 0) {
            const uint32_t high = codes >> low_bits & each * ((1U << high_bits) - 1);
            merge(chunk + layout.high_at(group, step) + row * step_columns, high << layout.high_shift(step));
        }
    }
}

void write_codes(const ChunkLayout &layout, const RowChunk &from, int row, uint8_t *chunk) {
    switch (layout.code_bits) {
    case 2: return write_codes<2, 0>(layout, from, row, chunk);
    case 3: return write_codes<2, 1>(layout, from, row, chunk);
    case 4: return write_codes<4, 0>(layout, from, row, chunk);
    case 5: return write_codes<4, 1>(layout, from, row, chunk);
    case 6: return write_codes<4, 2>(layout, from, row, chunk);
    default: return write_codes<8, 0>(layout, from, row, chunk);
    }
}

void write_scales(const ChunkLayout &layout, const RowChunk &from, int row, uint8_t *chunk) {
    auto put_half = [&](int at, uint16_t value) { std::memcpy(chunk + at + row * 2, &value, 2); };
    for (int i = 0; i < layout.n_scales(); ++i) {
        const uint16_t scale = from.scales[static_cast<size_t>(i)], minimum = from.minima[static_cast<size_t>(i)];
        if (layout.scales == ScaleForm::halves) {
            put_half(layout.scale_at(i), scale);
            if (layout.has_minima) put_half(layout.minimum_at(i), minimum);
            continue;
        }
        chunk[layout.scale_at(i) + row] = static_cast<uint8_t>(scale);
        if (layout.scales == ScaleForm::bytes) chunk[layout.minimum_at(i) + row] = static_cast<uint8_t>(minimum);
    }
    if (!layout.has_two_levels()) return;
    put_half(layout.factors_at(), from.factor);
    put_half(layout.factors_at() + tile_rows * 2, from.minimum_factor);
}

int code_at(const ChunkLayout &layout, const uint8_t *chunk, int lane_row, int column) {
    const int group = column / group_columns, step = column % group_columns / step_columns;
    const int lane = lane_row * step_columns + column % step_columns;
    auto bits = [&](int at, int shift, int n_bits) { return chunk[at + lane] >> shift & ((1 << n_bits) - 1); };
    const int low = bits(layout.low_at(group, step), layout.low_shift(step), layout.low_bits());
    if (layout.has_table()) return layout.table()[low] + layout.zero_point;
    if (layout.high_bits() == 0) return low;
    return low | bits(layout.high_at(group, step), layout.high_shift(step), layout.high_bits()) << layout.low_bits();
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
    const uint8_t *scales = chunk + layout.scale_at(i);
    if (layout.scales == ScaleForm::halves) return half_to_float(half_at(scales + lane_row * 2));
    const float small = small_number(layout.scales, scales[lane_row]);
    if (!layout.has_two_levels()) return small;
    return half_to_float(half_at(chunk + layout.factors_at() + lane_row * 2)) * small;
}

// What is added to the values of a scale.
float minimum_at(const ChunkLayout &layout, const uint8_t *chunk, int i, int lane_row) {
    const uint8_t *minima = chunk + layout.minimum_at(i);
    if (layout.scales == ScaleForm::halves) return half_to_float(half_at(minima + lane_row * 2));
    const uint8_t byte = minima[lane_row];
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
