// Products with weights of 16 or 32 bits, as a template over the vector type of an instruction set: single precision,
// one column after the other.
//
// Included once by each instruction set's file, after its Lanes; nothing here has external linkage.
#pragma once

#include "kernels/matmul_kernels.h"

namespace quire {
namespace {

constexpr int ahead_bytes = 4096; // see matmul_tile.h
constexpr int max_block_rows = 6;

// How many registers of a column a block of rows takes: sums of more would not stay in registers.
template <class L> constexpr int registers_of_column(int n_rows) {
    int n = float_tile_rows / L::width;
    while (n > 1 && n * n_rows > (L::registers >= 32 && L::width < 16 ? 24 : 12)) n /= 2;
    return n;
}

// n_rows of x times n_registers * L::width output rows, of which the first is `column`.
template <class L, class Value, int n_rows>
void multiply_block(const MatmulPart &part, const Value *tile, int64_t column, int64_t row) {
    using Vec = typename L::Vec;
    constexpr int n_registers = registers_of_column<L>(n_rows);
    const int64_t n_in = part.weights->n_in;
    const float *x[n_rows];
    for (int r = 0; r < n_rows; ++r) x[r] = part.raw + (row + r) * n_in;
    Vec sums[n_rows][n_registers];
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 16
        for (int t = 0; t < n_registers; ++t) sums[r][t] = L::set(0.0F);
    }
    // Later blocks of rows find the tile in a cache.
    const bool from_memory = row == part.first_row;
    for (int64_t k = 0; k < n_in; ++k, tile += float_tile_rows) {
        if (from_memory) {
            const char *ahead = reinterpret_cast<const char *>(tile) + ahead_bytes;
            for (size_t i = 0; i < n_registers * L::width * sizeof(Value); i += register_bytes)
                __builtin_prefetch(ahead + i);
        }
        Vec weights[n_registers];
#pragma GCC unroll 16
        for (int t = 0; t < n_registers; ++t) weights[t] = L::load(tile + t * L::width);
#pragma GCC unroll 16
        for (int r = 0; r < n_rows; ++r) {
            const Vec value = L::set(x[r][k]);
#pragma GCC unroll 16
            for (int t = 0; t < n_registers; ++t) sums[r][t] = L::fma(weights[t], value, sums[r][t]);
        }
    }
    for (int t = 0; t < n_registers; ++t) {
        const int64_t first = column + t * L::width, left = part.weights->n_out - first;
        for (int r = 0; r < n_rows && left > 0; ++r) {
            float *to = part.out + (row + r) * part.out_stride + first;
            if (left >= L::width) {
                L::store(to, sums[r][t]);
                continue;
            }
            float last[L::width];
            L::store(last, sums[r][t]);
            for (int64_t i = 0; i < left; ++i) to[i] = last[i];
        }
    }
}

// Rows [row, end) of a tile, in blocks of up to max_rows.
template <class L, class Value, int max_rows>
void multiply_rows(const MatmulPart &part, const Value *tile, int64_t column, int64_t row, int64_t end) {
    constexpr int step = registers_of_column<L>(max_rows) * L::width;
    for (; row + max_rows <= end; row += max_rows) {
        for (int at = 0; at < float_tile_rows; at += step)
            multiply_block<L, Value, max_rows>(part, tile + at, column + at, row);
    }
    if constexpr (max_rows > 1) {
        if (row < end) multiply_rows<L, Value, max_rows - 1>(part, tile, column, row, end);
    }
}

template <class L, class Value> void multiply(const MatmulPart &part) {
    const int64_t tile_values = part.weights->n_in * float_tile_rows;
    const auto *values = reinterpret_cast<const Value *>(part.weights->data);
    for (int64_t tile = part.first_tile; tile < part.first_tile + part.n_tiles; ++tile) {
        multiply_rows<L, Value, max_block_rows>(part, values + tile * tile_values, tile * float_tile_rows,
                                                part.first_row, part.first_row + part.n_rows);
    }
}

template <class L> void multiply_any(const MatmulPart &part) {
    switch (part.weights->format) {
    case WeightFormat::f16: return multiply<L, typename L::F16>(part);
    case WeightFormat::bf16: return multiply<L, typename L::Bf16>(part);
    default: return multiply<L, float>(part);
    }
}

} // namespace
} // namespace quire
