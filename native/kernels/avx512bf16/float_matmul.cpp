// Products of BF16 by BF16 with VDPBF16PS: two columns are multiplied at a time, in the same order for one row and for
// many.  The instruction treats subnormal numbers as zero.
#include "kernels/avx512/lanes.h"
#include "kernels/matmul/float_blocks.h"

namespace quire {
namespace {

constexpr int n_registers = float_tile_rows / Lanes::width;

struct PairColumns {
    static constexpr int max_rows = 6;
    using Weight = uint16_t;
    using X = uint16_t;

    template <int n_rows>
    static void add(const ColumnBlock<uint16_t> &block, const uint16_t *tile, const BlockSums &sums) {
        const uint16_t *x[n_rows];
        __m512 total[n_rows][n_registers];
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; ++r) {
            x[r] = block.x + r * block.x_stride;
#pragma GCC unroll 8
            for (int t = 0; t < n_registers; ++t) total[r][t] = sums.begin<Lanes>(r, t * Lanes::width);
        }
        PrefetchCursor ahead = block.ahead;
        for (int64_t k = 0; k < block.n_columns; k += 2, tile += 2 * float_tile_rows) {
            if constexpr (n_rows <= few_rows) {
                ahead.next_lines<4>();
            } else {
                ahead.next();
                ahead.next();
            }
            __m512i weights[n_registers];
#pragma GCC unroll 8
            for (int t = 0; t < n_registers; ++t) weights[t] = _mm512_loadu_si512(tile + t * 2 * Lanes::width);
#pragma GCC unroll 8
            for (int r = 0; r < n_rows; ++r) {
                int32_t pair;
                __builtin_memcpy(&pair, x[r] + k, sizeof pair);
                const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 8
                for (int t = 0; t < n_registers; ++t)
                    total[r][t] = _mm512_dpbf16_ps(total[r][t], reinterpret_cast<__m512bh>(weights[t]), both);
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 8
            for (int t = 0; t < n_registers; ++t)
                Lanes::store(sums.to + r * sums.to_stride + t * Lanes::width, total[r][t]);
        }
    }
};

void multiply(const MatmulPart &part) { avx512::float_matmul_kernels.multiply(part); }

void multiply_bf16(const MatmulPart &part) {
    multiply_tiles<PairColumns>(part, {part.bf16, bf16_row_bytes(part.weights->n_in) / 2});
}

} // namespace

const FloatMatmulKernels avx512bf16::float_matmul_kernels = {multiply, multiply_bf16};

} // namespace quire
