// The product of a few tiles of weights and a few rows of activations, with all sums in registers.
//
// L needs everything that packed_tile.h does, and Products, which sums products of codes exactly.  If it has
// L::MatrixProducts, these multiply even numbers of rows.  The order of floating-point operations is the same on all
// instruction sets, and so are the bits of the result.
#pragma once

#include "kernels/matmul/packed_tile.h"

namespace quire {
namespace {

// The activations that a block of rows reads.
template <int n_rows> struct RowBlock {
    const int8_t *codes[n_rows];
    const float *scales[n_rows];
    // Sums per 16 columns if each 16 columns have a scale, otherwise per 32.
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

// True if the instruction set multiplies matrices of codes.
template <class L>
concept multiplies_matrices = requires { typename L::MatrixProducts; };

// n_tiles tiles times n_rows rows.  The registers of a row of the result are ordered by tile, then by part.
template <class L, class Weights, int n_rows, int n_tiles> struct Block {
    using Vec = typename L::Vec;
    using Bytes = typename L::Bytes;
    static constexpr int parts = tile_rows / L::width;
    static constexpr int n_registers = n_tiles * parts;
    static constexpr int scale_parts = group_columns / Weights::scale_columns; // scales per group

    Weights weights[n_tiles];
    RowBlock<n_rows> x;
    using Sums = Vec[n_rows][n_registers];

    // Sum codes * x codes over the columns of one scale, exactly.
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

    // multiply_codes() with products of matrices: two steps of output rows times those of two rows of activations.
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

    // The initial sums, which subtract the zero point of the weights times the sum of a row's codes.
    [[gnu::always_inline]] inline typename L::Ints first_total(int64_t group, int half, int r) const {
        if constexpr (Weights::zero_point == 0) {
            return L::set_ints(0);
        } else {
            return L::shifted_left(L::set_ints(x.negated_sums[r][group * scale_parts + half]),
                                   __builtin_ctz(Weights::zero_point));
        }
    }

    // Add the columns of one scale: sum += scale * x scale * (codes . x codes).
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

    [[gnu::always_inline]] inline void run(int64_t n_chunks, PrefetchCursor &ahead, Sums &sums) {
#pragma GCC unroll 16
        for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 16
            for (int u = 0; u < n_registers; ++u) sums[r][u] = L::set(0.0F);
        }
        for (int64_t c = 0; c < n_chunks; ++c) {
#pragma GCC unroll 2
            for (int g = 0; g < Weights::chunk_groups; ++g) {
                if (g % asking_groups == 0) ahead.next();
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

} // namespace
} // namespace quire
