// Products of codes of weights with codes of activations, as a template over the vector type of an instruction set: see
// packed_weights.h for the layout.  The 16 output rows of a tile lie in `parts` registers side by side.
//
// What L, an instruction set's CodeLanes, has beside its Lanes: Bytes and Ints (a register of them), the operations
// below, and Products, a sum of products of codes that is exact.  direct_rows: so many rows at once with tiles as they
// lie in memory (0: always unpack); unpacked_rows and unpacked_tiles: with unpacked ones.  Where L::signed_codes,
// codes of 8 bits are multiplied as signed numbers, with 128 taken off; all others are unsigned.  Where there are
// L::MatrixProducts, even numbers of rows are multiplied by them.
//
// Included once by each instruction set's file, after its CodeLanes; nothing here has external linkage.  The order of
// all floating-point operations is the same everywhere, and so are the bits of the result.
#pragma once

#include <cstdint>

#include "kernels/matmul_kernels.h"

namespace quire {
namespace {

// How far ahead of its first use a tile is asked for.  Tiles follow each other in memory; with one stream of them and
// this distance every format reaches the memory's bandwidth, which the hardware's own prefetching does not.
constexpr int ahead_bytes = 4096;
// Up to so many rows read tiles as they lie in memory, one after the other; more are worth unpacking for.
constexpr int max_direct_rows = 24;

[[gnu::always_inline]] inline void prefetch(const uint8_t *chunk, int64_t size_bytes) {
    for (int64_t i = 0; i < size_bytes; i += register_bytes) __builtin_prefetch(chunk + i);
}

// Weights that later work reads, asked for evenly while this work goes on: `step` bytes with every chunk.
struct Ahead {
    const uint8_t *at, *end;
    int64_t step;

    // All of [at, at + size_bytes) in n_chunks.
    static Ahead in_chunks(const uint8_t *at, int64_t size_bytes, int64_t n_chunks) {
        const int64_t lines = (size_bytes + register_bytes - 1) / register_bytes;
        return {at, at + size_bytes, (lines + n_chunks - 1) / n_chunks * register_bytes};
    }
    [[gnu::always_inline]] inline void next() {
        if (at >= end) return;
        prefetch(at, step);
        at += step;
    }
};

constexpr bool is_signed_code(bool signed_codes, int max_code) { return signed_codes && max_code == 255; }

// Weights of a tile as they lie in memory.  `p` is the part of the 16 rows.
template <class L, WeightFormat format> struct Packed {
    using Bytes = typename L::Bytes;
    using Vec = typename L::Vec;
    static constexpr ChunkLayout layout = chunk_layout(format);
    static constexpr bool in_memory = true;
    static constexpr bool has_minima = layout.has_minima;
    static constexpr int scale_columns = layout.scale_columns;
    static constexpr int max_code = layout.max_code();
    static constexpr int chunk_groups = layout.columns / group_columns;
    static constexpr int64_t chunk_bytes = layout.bytes();
    static constexpr bool is_signed = is_signed_code(L::signed_codes, max_code);
    static constexpr int zero_point = is_signed ? 0 : layout.zero_point;

    const uint8_t *chunk;

    [[gnu::always_inline]] Bytes bytes(int at, int p) const {
        return L::load_bytes(chunk + at * register_bytes + p * L::width * step_columns);
    }
    // The codes of a step of the chunk's group g.
    [[gnu::always_inline]] Bytes codes(int g, int step, int p) const {
        constexpr int high = layout.low_bytes() / register_bytes;
        if constexpr (layout.code_bits == 8) {
            const Bytes all = bytes(g * group_steps + step, p);
            return is_signed ? L::flip_sign(all) : all;
        } else if constexpr (layout.code_bits <= 3) {
            const Bytes low = L::shifted(bytes(g * 2 + step / 4, p), -(step % 4) * 2, 3);
            if constexpr (layout.code_bits == 2) return low;
            return L::either(low, L::shifted(bytes(high + g, p), 2 - step, 4));
        } else {
            const Bytes low = L::shifted(bytes(g * 4 + step / 2, p), -(step % 2) * 4, 15);
            if constexpr (layout.has_table()) return L::looked_up(layout.table(), zero_point, low);
            if constexpr (layout.code_bits == 5) return L::either(low, L::shifted(bytes(high + g, p), 4 - step, 16));
            if constexpr (layout.code_bits == 6)
                return L::either(low, L::shifted(bytes(high + g * 2 + step / 4, p), 4 - step % 4 * 2, 48));
            return low;
        }
    }
    [[gnu::always_inline]] static Vec halves(const uint8_t *at) {
        return L::load(reinterpret_cast<const typename L::F16 *>(at));
    }
    [[gnu::always_inline]] Vec factors(int which, int p) const {
        return halves(chunk + layout.factors_at() + (which * tile_rows + p * L::width) * 2);
    }
    // i: which scale of the chunk.
    [[gnu::always_inline]] Vec scale(int i, int p) const {
        const int at = i * tile_rows + p * L::width;
        const uint8_t *scales = chunk + layout.scales_at();
        if constexpr (layout.scales == ScaleForm::halves) return halves(scales + at * 2);
        if constexpr (layout.scales == ScaleForm::powers) return L::power(L::widen_bytes(scales + at));
        if constexpr (layout.scales == ScaleForm::minifloats)
            return L::mul(L::from_bits(L::shifted_left(L::widen_bytes(scales + at), 20)), L::set(0x1p119F));
        if constexpr (layout.scales == ScaleForm::signed_bytes)
            return L::mul(factors(0, p), L::to_floats(L::widen_signed_bytes(scales + at)));
        if constexpr (layout.scales == ScaleForm::nibbles)
            return L::mul(factors(0, p), L::to_floats(L::low_nibbles(L::widen_bytes(scales + at))));
        return L::mul(factors(0, p), L::to_floats(L::widen_bytes(scales + at)));
    }
    // What is added; two levels subtract it.
    [[gnu::always_inline]] Vec minimum(int i, int p) const {
        const int at = i * tile_rows + p * L::width;
        const uint8_t *minima = chunk + layout.minima_at();
        if constexpr (layout.scales == ScaleForm::halves) return halves(minima + at * 2);
        const Vec factor = L::sub(L::set(0.0F), factors(1, p));
        if constexpr (layout.scales == ScaleForm::nibbles)
            return L::mul(factor, L::to_floats(L::high_nibbles(L::widen_bytes(minima + at))));
        return L::mul(factor, L::to_floats(L::widen_bytes(minima + at)));
    }
};

// Weights of a tile, unpacked once for many rows: codes of a byte, then scales, then minima, as floats.  Without minima
// the zero point is in the middle of what codes may be, up to largest_code, so that a few such types serve all formats.
template <class L, int columns_of_scale, bool minima, int largest_code> struct Unpacked {
    using Bytes = typename L::Bytes;
    using Vec = typename L::Vec;
    static constexpr bool in_memory = false;
    static constexpr bool has_minima = minima;
    static constexpr int scale_columns = columns_of_scale;
    static constexpr int max_code = largest_code;
    static constexpr int zero_point = minima || is_signed_code(L::signed_codes, max_code) ? 0 : (max_code + 1) / 2;
    static constexpr int chunk_groups = 2;
    static constexpr int n_scales = chunk_groups * group_columns / scale_columns;
    static constexpr int scales_at = chunk_groups * group_steps * register_bytes;
    static constexpr int minima_at = scales_at + n_scales * register_bytes;
    static constexpr int64_t chunk_bytes = minima_at + (minima ? n_scales * register_bytes : 0);

    const uint8_t *chunk;

    [[gnu::always_inline]] Bytes codes(int g, int step, int p) const {
        return L::load_bytes(chunk + (g * group_steps + step) * register_bytes + p * L::width * step_columns);
    }
    [[gnu::always_inline]] Vec floats(int at, int i, int p) const {
        return L::load(reinterpret_cast<const float *>(chunk + at + i * register_bytes) + p * L::width);
    }
    [[gnu::always_inline]] Vec scale(int i, int p) const { return floats(scales_at, i, p); }
    [[gnu::always_inline]] Vec minimum(int i, int p) const { return floats(minima_at, i, p); }
};

template <class L, WeightFormat format>
using UnpackedOf = Unpacked<L, chunk_layout(format).scale_columns, chunk_layout(format).has_minima,
                            L::code_class(chunk_layout(format).max_code())>;

// A chunk of the file's to chunks of `Unpacked`.
template <class L, WeightFormat format> void unpack_chunk(const Packed<L, format> &from, uint8_t *to) {
    using To = UnpackedOf<L, format>;
    constexpr int parts = tile_rows / L::width;
    constexpr int offset = To::zero_point - Packed<L, format>::zero_point;
    prefetch(from.chunk + ahead_bytes, from.chunk_bytes);
    for (int g = 0; g < from.chunk_groups; ++g) {
        uint8_t *chunk = to + g / To::chunk_groups * To::chunk_bytes;
        uint8_t *codes = chunk + g % To::chunk_groups * group_steps * register_bytes;
#pragma GCC unroll 8
        for (int step = 0; step < group_steps; ++step) {
#pragma GCC unroll 4
            for (int p = 0; p < parts; ++p) {
                const auto bytes = from.codes(g, step, p);
                uint8_t *at = codes + step * register_bytes + p * L::width * step_columns;
                L::store_bytes(at, offset == 0 ? bytes : L::add_to_bytes(bytes, offset));
            }
        }
    }
    for (int i = 0; i < from.layout.n_scales(); ++i) {
        uint8_t *chunk = to + i / To::n_scales * To::chunk_bytes;
        auto *scales = reinterpret_cast<float *>(chunk + To::scales_at + i % To::n_scales * register_bytes);
        auto *minima = reinterpret_cast<float *>(chunk + To::minima_at + i % To::n_scales * register_bytes);
        for (int p = 0; p < parts; ++p) {
            L::store(scales + p * L::width, from.scale(i, p));
            if constexpr (To::has_minima) L::store(minima + p * L::width, from.minimum(i, p));
        }
    }
}

// What a block of rows reads of the activations.
template <int n_rows> struct RowBlock {
    const int8_t *codes[n_rows];
    const float *scales[n_rows];
    // Of 16 columns each where scales are, else of 32.
    const float *scaled_sums[n_rows];
    const int32_t *negated_sums[n_rows];

    RowBlock(const QuantizedRows &x, int64_t first, bool halves) {
        for (int r = 0; r < n_rows; ++r) {
            codes[r] = x.codes(first + r);
            scales[r] = x.scales(first + r);
            scaled_sums[r] = halves ? x.scaled_half_sums(first + r) : x.scaled_sums(first + r);
            negated_sums[r] = halves ? x.negated_half_sums(first + r) : x.negated_sums(first + r);
        }
    }
};

// Whether the instruction set multiplies matrices of codes.
template <class L>
concept multiplies_matrices = requires { typename L::MatrixProducts; };

// Some tiles times some rows.  Registers of a row of the result: tile by tile, part by part.
template <class L, class Weights, int n_rows, int n_tiles> struct Block {
    using Vec = typename L::Vec;
    using Bytes = typename L::Bytes;
    static constexpr int parts = tile_rows / L::width;
    static constexpr int n_registers = n_tiles * parts;
    static constexpr int scale_parts = group_columns / Weights::scale_columns; // of a group

    Weights weights[n_tiles];
    RowBlock<n_rows> x;
    using Sums = Vec[n_rows][n_registers];

    // The columns of one scale: codes . x codes, exactly.
    [[gnu::always_inline]] inline void multiply_codes(int64_t group, int g, int half,
                                                      typename L::Ints (&totals)[n_rows][n_registers]) const {
        constexpr int n_steps = Weights::scale_columns / step_columns;
        typename L::template Products<Weights::max_code> products[n_rows][n_registers];
#pragma GCC unroll 16
        for (int r = 0; r < n_rows; ++r) {
            const typename L::Ints begin = first_total(group, half, r);
#pragma GCC unroll 16
            for (int u = 0; u < n_registers; ++u) products[r][u].start(begin);
        }
#pragma GCC unroll 16
        for (int s = 0; s < n_steps; ++s) {
            const int step = half * n_steps + s;
            Bytes codes[n_registers];
#pragma GCC unroll 16
            for (int u = 0; u < n_registers; ++u) codes[u] = weights[u / parts].codes(g, step, u % parts);
#pragma GCC unroll 16
            for (int r = 0; r < n_rows; ++r) {
                const Bytes four = L::four(x.codes[r] + group * group_columns + step * step_columns);
#pragma GCC unroll 16
                for (int u = 0; u < n_registers; ++u) products[r][u].add(codes[u], four, s);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 16
            for (int u = 0; u < n_registers; ++u) totals[r][u] = products[r][u].total(n_steps);
        }
    }

    // The same by products of matrices: two steps of output rows with those of two rows of activations.
    [[gnu::always_inline]] inline void multiply_matrices(int64_t group, int g, int half,
                                                         typename L::Ints (&totals)[n_rows][n_registers]) const {
        constexpr int n_steps = Weights::scale_columns / step_columns;
        typename L::MatrixProducts products[n_rows / 2][n_registers];
#pragma GCC unroll 16
        for (int s = 0; s < n_steps; s += 2) {
            const int step = half * n_steps + s;
            Bytes codes[n_registers][2];
#pragma GCC unroll 16
            for (int u = 0; u < n_registers; ++u) {
                codes[u][0] = weights[u / parts].codes(g, step, u % parts);
                codes[u][1] = weights[u / parts].codes(g, step + 1, u % parts);
            }
#pragma GCC unroll 16
            for (int r = 0; r < n_rows; r += 2) {
                const int64_t at = group * group_columns + step * step_columns;
                const Bytes two_rows = L::two_rows(x.codes[r] + at, x.codes[r + 1] + at);
#pragma GCC unroll 16
                for (int u = 0; u < n_registers; ++u) products[r / 2][u].add(codes[u], two_rows);
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < n_rows; ++r) {
            const typename L::Ints begin = first_total(group, half, r);
#pragma GCC unroll 16
            for (int u = 0; u < n_registers; ++u) totals[r][u] = L::add_ints(products[r / 2][u].total(r % 2), begin);
        }
    }

    // What the weights' zero point adds to the products with a row.
    [[gnu::always_inline]] inline typename L::Ints first_total(int64_t group, int half, int r) const {
        if constexpr (Weights::zero_point == 0) {
            return L::set_ints(0);
        } else {
            return L::shifted_left(L::set_ints(x.negated_sums[r][group * scale_parts + half]),
                                   __builtin_ctz(Weights::zero_point));
        }
    }

    // The columns of one scale: `sum` += scale * x scale * (codes . x codes).
    [[gnu::always_inline]] inline void add(int64_t group, int g, int half, Sums &sums) const {
        typename L::Ints totals[n_rows][n_registers];
        if constexpr (multiplies_matrices<L> && n_rows % 2 == 0) {
            multiply_matrices(group, g, half, totals);
        } else {
            multiply_codes(group, g, half, totals);
        }
        float factors[n_rows], sums_of_x[n_rows];
#pragma GCC unroll 16
        for (int r = 0; r < n_rows; ++r) {
            factors[r] = x.scales[r][group];
            if constexpr (Weights::has_minima) sums_of_x[r] = x.scaled_sums[r][group * scale_parts + half];
        }
#pragma GCC unroll 16
        for (int u = 0; u < n_registers; ++u) {
            const int i = g * scale_parts + half;
            const Vec scale = weights[u / parts].scale(i, u % parts);
#pragma GCC unroll 16
            for (int r = 0; r < n_rows; ++r) {
                const Vec factor = L::mul(scale, L::set(factors[r]));
                sums[r][u] = L::fused(L::to_floats(totals[r][u]), factor, sums[r][u]);
            }
            if constexpr (Weights::has_minima) {
                const Vec minimum = weights[u / parts].minimum(i, u % parts);
#pragma GCC unroll 16
                for (int r = 0; r < n_rows; ++r) sums[r][u] = L::fused(minimum, L::set(sums_of_x[r]), sums[r][u]);
            }
        }
    }

    [[gnu::always_inline]] inline void run(int64_t n_chunks, Ahead &ahead, Sums &sums) {
#pragma GCC unroll 16
        for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 16
            for (int u = 0; u < n_registers; ++u) sums[r][u] = L::set(0.0F);
        }
        for (int64_t c = 0; c < n_chunks; ++c) {
            ahead.next();
#pragma GCC unroll 2
            for (int g = 0; g < Weights::chunk_groups; ++g) {
                const int64_t group = c * Weights::chunk_groups + g;
                add(group, g, 0, sums);
                if constexpr (scale_parts == 2) add(group, g, 1, sums);
            }
            for (int t = 0; t < n_tiles; ++t) weights[t].chunk += Weights::chunk_bytes;
        }
    }

    [[gnu::always_inline]] inline static void store(const MatmulPart &part, int64_t tile, int64_t row,
                                                    const Sums &sums) {
#pragma GCC unroll 16
        for (int u = 0; u < n_registers; ++u) {
            const int64_t column = tile * tile_rows + u * L::width, left = part.weights->n_out - column;
#pragma GCC unroll 16
            for (int r = 0; r < n_rows; ++r) {
                if (left <= 0) continue;
                float *to = part.out + (row + r) * part.out_stride + column;
                left >= L::width ? L::store(to, sums[r][u]) : L::store_part(to, sums[r][u], static_cast<int>(left));
            }
        }
    }
};

// Some tiles, one after the other, for some rows.
struct TileRun {
    const uint8_t *first;
    int64_t n_tiles, n_chunks, first_tile;
};

template <class L, class Weights, int n_rows, int n_tiles>
void multiply_block(const MatmulPart &part, const TileRun &tiles, int64_t t, int64_t row, Ahead &ahead) {
    Block<L, Weights, n_rows, n_tiles> block{{}, {*part.x, row, Weights::scale_columns == 16}};
    typename Block<L, Weights, n_rows, n_tiles>::Sums sums; // not a member: it shall live in registers
    for (int i = 0; i < n_tiles; ++i)
        block.weights[i].chunk = tiles.first + (t + i) * tiles.n_chunks * Weights::chunk_bytes;
    Ahead own = ahead; // in registers, too
    block.run(tiles.n_chunks, own, sums);
    ahead = own;
    block.store(part, tiles.first_tile + t, row, sums);
}

template <class L, class Weights, int max_rows, int n_tiles>
void multiply_rows(int n_rows, const MatmulPart &part, const TileRun &tiles, int64_t t, int64_t row, Ahead &ahead) {
    if (n_rows == max_rows) return multiply_block<L, Weights, max_rows, n_tiles>(part, tiles, t, row, ahead);
    if constexpr (max_rows > 1) multiply_rows<L, Weights, max_rows - 1, n_tiles>(n_rows, part, tiles, t, row, ahead);
}

// All rows in blocks of up to max_rows, about equally large.
template <class L, class Weights, int max_rows, int n_tiles>
void multiply_all_rows(const MatmulPart &part, const TileRun &tiles, int64_t t, Ahead &ahead) {
    int row = part.first_row;
    const int end = row + part.n_rows;
    for (int left = (part.n_rows + max_rows - 1) / max_rows; left > 0; --left) {
        const int n = (end - row + left - 1) / left;
        multiply_rows<L, Weights, max_rows, n_tiles>(n, part, tiles, t, row, ahead);
        row += n;
    }
}

template <class L, class Weights, int max_rows, int max_tiles>
void multiply_tiles(const MatmulPart &part, const TileRun &tiles, Ahead ahead) {
    int64_t t = 0;
    for (; t + max_tiles <= tiles.n_tiles; t += max_tiles)
        multiply_all_rows<L, Weights, max_rows, max_tiles>(part, tiles, t, ahead);
    if constexpr (max_tiles > 1) {
        for (; t < tiles.n_tiles; ++t) multiply_all_rows<L, Weights, max_rows, 1>(part, tiles, t, ahead);
    }
}

template <class L, WeightFormat format> void multiply(const MatmulPart &part) {
    using From = Packed<L, format>;
    using To = UnpackedOf<L, format>;
    constexpr int64_t columns = From::layout.columns, spread = columns / group_columns / To::chunk_groups;
    const int64_t n_chunks = (part.weights->n_in + columns - 1) / columns, tile_bytes = n_chunks * From::chunk_bytes;
    const uint8_t *first = part.weights->data + part.first_tile * tile_bytes;
    const TileRun packed{first, part.n_tiles, n_chunks, part.first_tile};
    if constexpr (L::direct_rows > 0) {
        if (part.n_rows <= max_direct_rows) {
            // With several blocks of rows, each asks for a share of the next tile.
            const int64_t n_blocks = (part.n_rows + L::direct_rows - 1) / L::direct_rows;
            const uint8_t *at = first + (n_blocks == 1 ? ahead_bytes : tile_bytes);
            const auto ahead = Ahead::in_chunks(at, part.n_tiles * tile_bytes, part.n_tiles * n_chunks * n_blocks);
            return multiply_tiles<L, From, L::direct_rows, 1>(part, packed, ahead);
        }
    }
    uint8_t *to = part.scratch;
    for (int64_t c = 0; c < part.n_tiles * n_chunks; ++c, to += spread * To::chunk_bytes)
        unpack_chunk<L, format>({first + c * From::chunk_bytes}, to);
    // The next strip, while this one is multiplied.
    const int64_t n_blocks = (part.n_rows + L::unpacked_rows - 1) / L::unpacked_rows;
    const int64_t n_passes = (part.n_tiles + L::unpacked_tiles - 1) / L::unpacked_tiles * n_blocks;
    const auto ahead =
        Ahead::in_chunks(first + part.n_tiles * tile_bytes, part.n_tiles * tile_bytes, n_passes * n_chunks * spread);
    const TileRun unpacked{part.scratch, part.n_tiles, n_chunks * spread, part.first_tile};
    multiply_tiles<L, To, L::unpacked_rows, L::unpacked_tiles>(part, unpacked, ahead);
}

template <class L> void multiply_any(const MatmulPart &part) {
    switch (part.weights->format) {
    case WeightFormat::q4_0: return multiply<L, WeightFormat::q4_0>(part);
    case WeightFormat::q4_1: return multiply<L, WeightFormat::q4_1>(part);
    case WeightFormat::q5_0: return multiply<L, WeightFormat::q5_0>(part);
    case WeightFormat::q5_1: return multiply<L, WeightFormat::q5_1>(part);
    case WeightFormat::q8_0: return multiply<L, WeightFormat::q8_0>(part);
    case WeightFormat::q2_k: return multiply<L, WeightFormat::q2_k>(part);
    case WeightFormat::q3_k: return multiply<L, WeightFormat::q3_k>(part);
    case WeightFormat::q4_k: return multiply<L, WeightFormat::q4_k>(part);
    case WeightFormat::q5_k: return multiply<L, WeightFormat::q5_k>(part);
    case WeightFormat::q6_k: return multiply<L, WeightFormat::q6_k>(part);
    case WeightFormat::iq4_nl: return multiply<L, WeightFormat::iq4_nl>(part);
    case WeightFormat::iq4_xs: return multiply<L, WeightFormat::iq4_xs>(part);
    case WeightFormat::mxfp4: return multiply<L, WeightFormat::mxfp4>(part);
    case WeightFormat::nvfp4: return multiply<L, WeightFormat::nvfp4>(part);
    default: return; // floats are float_matmul_tile.h's
    }
}

// A group of 32 activations to codes.  `from` is null behind the last column.
template <class L> void quantize_group(const float *from, const QuantizedRows &to, int64_t row, int64_t group) {
    constexpr int n = group_columns / L::width;
    typename L::Vec x[n], largest = L::set(0.0F), finite = L::set(0.0F);
    for (int i = 0; i < n; ++i) {
        x[i] = from == nullptr ? L::set(0.0F) : L::load(from + i * L::width);
        largest = L::max(L::max(x[i], L::sub(L::set(0.0F), x[i])), largest);
        finite = L::add(finite, L::mul(x[i], L::set(0.0F)));
    }
    float scale = L::largest(largest) / 127.0F;
    // The maximum passes over what is not a number; a row that has such a column must not look sound.
    if (!(L::total(finite) == 0.0F)) scale = __builtin_nanf("");
    // Below the normal numbers the inverse overflows; such columns count as zero.
    const typename L::Vec inverse = L::set(scale > 1e-37F ? 1.0F / scale : 0.0F);
    int32_t sums[2] = {0, 0};
    for (int i = 0; i < n; ++i) {
        const typename L::Ints codes = L::rounded(L::mul(x[i], inverse));
        L::store_codes(to.codes(row) + group * group_columns + i * L::width, codes);
        sums[i * 2 / n] += L::total_ints(codes);
    }
    to.scales(row)[group] = scale;
    to.scaled_sums(row)[group] = scale * static_cast<float>(sums[0] + sums[1]);
    to.negated_sums(row)[group] = -(sums[0] + sums[1]);
    to.negated_half_sums(row)[2 * group] = -sums[0];
    to.negated_half_sums(row)[2 * group + 1] = -sums[1];
    for (int half = 0; half < 2; ++half)
        to.scaled_half_sums(row)[2 * group + half] = scale * static_cast<float>(sums[half]);
}

template <class L> void quantize(const float *x, int64_t first, int64_t last, QuantizedRows &to) {
    const int64_t n_groups = QuantizedRows::n_groups(to.n_in);
    for (int64_t row = first; row < last; ++row) {
        const float *from = x + row * to.n_in;
        // n_in is a multiple of 32; the last group may be padding.
        for (int64_t g = 0; g < n_groups; ++g)
            quantize_group<L>((g + 1) * group_columns <= to.n_in ? from + g * group_columns : nullptr, to, row, g);
    }
}

} // namespace
} // namespace quire
