// Products with weights of 16 or 32 bits in single precision, column by column, as a template over the vector type of
// an instruction set.
//
// Each instruction set's file includes this once, after its Lanes; nothing here has external linkage.
#pragma once

#include <type_traits>

#include "kernels/matmul/float_blocks.h"

namespace quire {
namespace {

// The number of a column's registers that a block of rows takes at a time, so that all sums stay in registers.
template <class L> constexpr int registers_of_column(int n_rows) {
    int n = float_tile_rows / L::width;
    while (n > 1 && n * n_rows > (L::registers >= 32 ? 24 : 12)) n /= 2;
    return n;
}

// Load L::width output rows of a column.
template <class L, class Value>
[[gnu::always_inline]] inline typename L::Vec load_column(const Value *tile, int64_t k, int row) {
    if constexpr (std::is_same_v<Value, typename L::Bf16>) {
        const Value *pairs = tile + float_at(WeightFormat::bf16, k / 2 * 2, row);
        return k % 2 == 0 ? L::load_even(pairs) : L::load_odd(pairs);
    } else {
        return L::load(tile + k * float_tile_rows + row);
    }
}

// Multiply columns [0, n_columns) of n_rows of x by n_registers * L::width output rows from `first` on, the first of
// `sums`.
template <class L, class Value, int n_rows>
[[gnu::always_inline]] inline void add_columns(const ColumnBlock<float> &block, const Value *tile, int first,
                                               const BlockSums &sums) {
    using Vec = typename L::Vec;
    constexpr int n_registers = registers_of_column<L>(n_rows);
    const float *x[n_rows];
    Vec total[n_rows][n_registers];
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; ++r) {
        x[r] = block.x + r * block.x_stride;
#pragma GCC unroll 16
        for (int t = 0; t < n_registers; ++t) total[r][t] = sums.begin<L>(r, t * L::width);
    }
    PrefetchCursor ahead = block.ahead;
    for (int64_t k = 0; k < block.n_columns; ++k) {
        if constexpr (n_rows <= few_rows && n_registers * L::width == float_tile_rows) {
            ahead.template next_lines<float_tile_rows *static_cast<int>(sizeof(Value)) / register_bytes>();
        } else {
            ahead.next();
        }
        Vec weights[n_registers];
#pragma GCC unroll 16
        for (int t = 0; t < n_registers; ++t) weights[t] = load_column<L>(tile, k, first + t * L::width);
#pragma GCC unroll 16
        for (int r = 0; r < n_rows; ++r) {
            const Vec value = L::set(x[r][k]);
#pragma GCC unroll 16
            for (int t = 0; t < n_registers; ++t) total[r][t] = L::fma(weights[t], value, total[r][t]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 16
        for (int t = 0; t < n_registers; ++t) L::store(sums.to + r * sums.to_stride + t * L::width, total[r][t]);
    }
}

template <class L, class Value> struct FloatColumns {
    static constexpr int max_rows = 6;
    using Weight = Value;
    using X = float;
    template <int n_rows> static void add(const ColumnBlock<float> &block, const Value *tile, const BlockSums &sums) {
        constexpr int step = registers_of_column<L>(n_rows) * L::width;
        for (int at = 0; at < float_tile_rows; at += step) {
            ColumnBlock<float> part = block;
            if (at > 0) part.ahead.at = part.ahead.end;
            add_columns<L, Value, n_rows>(part, tile, at, sums.from(at));
        }
    }
};

template <class L> void multiply_any(const MatmulPart &part) {
    const ActivationRows<float> rows{part.raw, part.weights->n_in};
    switch (part.weights->format) {
    case WeightFormat::f16: return multiply_tiles<FloatColumns<L, typename L::F16>>(part, rows);
    case WeightFormat::bf16: return multiply_tiles<FloatColumns<L, typename L::Bf16>>(part, rows);
    default: return multiply_tiles<FloatColumns<L, float>>(part, rows);
    }
}

} // namespace
} // namespace quire
