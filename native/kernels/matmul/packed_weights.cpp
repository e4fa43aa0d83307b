#include "kernels/matmul/packed_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/matmul/file_blocks.h"

namespace quire {
namespace {

// True if a product that goes through a chunk's columns reads its cache lines in order and without gaps.
constexpr bool is_read_in_order(const ChunkLayout &layout) {
    int last = layout.has_two_levels() ? layout.factors_at() / register_bytes : -1;
    bool in_order = true;
    auto meet = [&](int at) {
        const int line = at / register_bytes;
        in_order = in_order && line <= last + 1;
        last = line > last ? line : last;
    };
    for (int column = 0; column < layout.columns; column += step_columns) {
        const int group = column / group_columns, step = column % group_columns / step_columns;
        meet(layout.scale_at(column / layout.scale_columns));
        if (layout.has_minima) meet(layout.minimum_at(column / layout.scale_columns));
        if (layout.high_bits() > 0) meet(layout.high_at(group, step));
        meet(layout.low_at(group, step));
    }
    return in_order && (last + 1) * register_bytes == layout.bytes();
}
constexpr bool are_read_in_order() {
    for (int i = static_cast<int>(WeightFormat::q4_0); i <= static_cast<int>(last_format); ++i) {
        if (!is_read_in_order(chunk_layout(static_cast<WeightFormat>(i)))) return false;
    }
    return true;
}
static_assert(are_read_in_order());

void merge(uint8_t *at, uint32_t bytes) {
    uint32_t there;
    std::memcpy(&there, at, sizeof there);
    there |= bytes;
    std::memcpy(at, &there, sizeof there);
}

// Write a row's codes to a chunk, a step of four codes at a time.
template <WeightFormat format> void write_codes(const RowChunk &from, int row, uint8_t *chunk) {
    constexpr ChunkLayout layout = chunk_layout(format);
    constexpr uint32_t each = 0x01010101U, low_mask = each * ((1U << layout.low_bits()) - 1),
                       high_mask = each * ((1U << layout.high_bits()) - 1);
    chunk += row * step_columns;
    for (int group = 0; group < layout.columns / group_columns; ++group) {
#pragma GCC unroll 8
        for (int step = 0; step < group_steps; ++step) {
            uint32_t codes;
            std::memcpy(&codes, from.codes.data() + group * group_columns + step * step_columns, sizeof codes);
            merge(chunk + layout.low_at(group, step), (codes & low_mask) << layout.low_shift(step));
            if constexpr (layout.high_bits() > 0)
                merge(chunk + layout.high_at(group, step), (codes >> layout.low_bits() & high_mask)
                                                               << layout.high_shift(step));
        }
    }
}

template <WeightFormat format> void write_scales(const RowChunk &from, int row, uint8_t *chunk) {
    constexpr ChunkLayout layout = chunk_layout(format);
    auto put_half = [&](int at, uint16_t value) { std::memcpy(chunk + at + row * 2, &value, 2); };
    for (int i = 0; i < layout.n_scales(); ++i) {
        const uint16_t scale = from.scales[static_cast<size_t>(i)], minimum = from.minima[static_cast<size_t>(i)];
        if (layout.scales == ScaleForm::halves) {
            put_half(layout.scale_at(i), scale);
            if (layout.has_minima) put_half(layout.minimum_at(i), minimum);
            continue;
        }
        chunk[layout.scale_at(i) + row] = static_cast<uint8_t>(scale);
        if (layout.has_bytes_of_minima()) chunk[layout.minimum_at(i) + row] = static_cast<uint8_t>(minimum);
    }
    if (!layout.has_two_levels()) return;
    put_half(layout.factors_at(), from.factor);
    if (layout.has_minima) put_half(layout.factors_at() + tile_rows * 2, from.minimum_factor);
    if (layout.values == CodeValues::in_chunk)
        std::memcpy(chunk + layout.table_at(), from.table.data(), from.table.size());
}

template <WeightFormat format> int code_at(const uint8_t *chunk, int lane_row, int column) {
    constexpr ChunkLayout layout = chunk_layout(format);
    const int group = column / group_columns, step = column % group_columns / step_columns;
    const int lane = lane_row * step_columns + column % step_columns;
    auto bits = [&](int at, int shift, int n_bits) { return chunk[at + lane] >> shift & ((1 << n_bits) - 1); };
    int code = bits(layout.low_at(group, step), layout.low_shift(step), layout.low_bits());
    if constexpr (layout.high_bits() > 0)
        code |= bits(layout.high_at(group, step), layout.high_shift(step), layout.high_bits()) << layout.low_bits();
    return layout.has_table() ? layout.table(chunk)[code] + layout.zero_point : code;
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

// Scale `i` of a row.
template <WeightFormat format> float scale_at(const uint8_t *chunk, int i, int lane_row) {
    constexpr ChunkLayout layout = chunk_layout(format);
    const uint8_t *scales = chunk + layout.scale_at(i);
    if (layout.scales == ScaleForm::halves) return half_to_float(half_at(scales + lane_row * 2));
    const float small = small_number(layout.scales, scales[lane_row]);
    if (!layout.has_two_levels()) return small;
    return half_to_float(half_at(chunk + layout.factors_at() + lane_row * 2)) * layout.unit * small;
}

// The minimum that belongs to scale `i`, which is added to its values.
template <WeightFormat format> float minimum_at(const uint8_t *chunk, int i, int lane_row) {
    constexpr ChunkLayout layout = chunk_layout(format);
    const uint8_t *minima = chunk + layout.minimum_at(i);
    if (layout.scales == ScaleForm::halves) return half_to_float(half_at(minima + lane_row * 2));
    const uint8_t byte = minima[lane_row];
    const int small = layout.scales == ScaleForm::nibbles ? byte >> 4 : byte;
    const float factor = half_to_float(half_at(chunk + layout.factors_at() + (tile_rows + lane_row) * 2));
    return -(factor * static_cast<float>(small));
}

// Round F16 to the nearest BF16, ties to even.
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
    // A few columns at a time, so that both sides stay in the first-level cache.
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
    // A lookup table: there are few F16 numbers, and converting each one takes longer than reading the file.
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

template <WeightFormat format> void unpack_code_row(const PackedWeights &packed, int64_t row, float *to) {
    constexpr ChunkLayout layout = chunk_layout(format);
    const uint8_t *chunk = packed.data + row / tile_rows * packed.tile_bytes();
    const int lane_row = static_cast<int>(row % tile_rows);
    for (int64_t begin = 0; begin < packed.n_in; begin += layout.columns, chunk += layout.bytes()) {
        for (int column = 0; column < layout.columns && begin + column < packed.n_in; ++column) {
            const int i = column / layout.scale_columns, code = code_at<format>(chunk, lane_row, column);
            float value = scale_at<format>(chunk, i, lane_row) * static_cast<float>(code - layout.zero_point);
            if constexpr (layout.has_minima) value += minimum_at<format>(chunk, i, lane_row);
            to[begin + column] = value;
        }
    }
}

template <WeightFormat format>
void pack_code_tile(const PackedWeights &packed, const uint8_t *rows, int64_t tile, uint8_t *to) {
    constexpr ChunkLayout layout = chunk_layout(format);
    const int64_t block_bytes = file_block_bytes(packed.format), block_columns = file_block_columns(packed.format);
    const int64_t row_blocks = packed.n_in / block_columns, chunk_blocks = layout.columns / block_columns;
    std::memset(to, 0, static_cast<size_t>(packed.tile_bytes()));
    RowChunk row_chunk;
    for (int row = 0; row < tile_rows && tile * tile_rows + row < packed.n_out; ++row) {
        const uint8_t *blocks = rows + (tile * tile_rows + row) * row_blocks * block_bytes;
        for (int64_t c = 0; c < packed.n_chunks(); ++c) {
            const int64_t first = c * chunk_blocks;
            const int n = static_cast<int>(first + chunk_blocks <= row_blocks ? chunk_blocks : row_blocks - first);
            read_chunk(packed.format, blocks + first * block_bytes, n, row_chunk);
            write_codes<format>(row_chunk, row, to + c * layout.bytes());
            write_scales<format>(row_chunk, row, to + c * layout.bytes());
        }
    }
}

} // namespace

void unpack_row(const PackedWeights &packed, int64_t row, float *to) {
    if (packed.is_float()) return unpack_float_row(packed, row, to);
    with_format(packed.format, [&]<WeightFormat format>() { unpack_code_row<format>(packed, row, to); });
}

void pack_tile(const PackedWeights &packed, const uint8_t *rows, int64_t tile, uint8_t *to) {
    if (packed.is_float()) return pack_float_tile(packed, rows, tile, to);
    with_format(packed.format, [&]<WeightFormat format>() { pack_code_tile<format>(packed, rows, tile, to); });
}

} // namespace quire
