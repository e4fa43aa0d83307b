// The kernels for cuda/batch_product.h: products of 1 to 64 rows with arranged matrices, on tensor cores.
//
// 1. round_rows brings each row to between 1 and 2 by a power of two, rounds it to f16 (with BF16 matrices to bf16) and
//    stores it in the order of `mma`'s second operand.
// 2. multiply_rows: a thread block has some strips of 16 output rows and a part of the columns.  Weights and rows pass
//    through shared memory, several units ahead.  Warps share the strips, and the groups of a unit.
// 3. add_parts sums the parts of the columns in order, if there are several.
//
// The order of all sums depends on the variant and the number of parts, not on the number of rows, so results are
// batch-invariant.  Tests run this source on the CPU (tests/native/cuda_emulator.h).
#pragma once

#include "cuda/batch_types.cuh"
#include "cuda/lanes.cuh"

namespace quire_cuda {

constexpr int round_threads = 128, batch_threads = 128;

struct BatchArgs {
    const float *factors; // for the rows of the matrix
    const char *units; // the matrix's
    const float *x, *norm, *added; // the last two may be null
    char *rounded; // [groups][row tiles][32 lanes][16 bytes]; row by row if n_tiles is 0
    float *row_factors; // for the rows of x: [8 * row tiles]
    float *parts; // [n_splits][n_rows][16 * n_strips], if there are several
    float *out;
    int n_in, n_out, n_rows, n_strips, n_units, unit_columns, n_splits, n_tiles, is_normed, is_bf16;
    float eps;
};

// Grid: 8 * n_tiles rows, or n_rows if n_tiles is 0.  Rows from n_rows on are zero, and columns beyond n_in.
inline __global__ void __launch_bounds__(round_threads) round_rows(BatchArgs a) {
    __shared__ float sums[round_threads / 32], maxima[round_threads / 32];
    const int row = blockIdx.x, lane = threadIdx.x % 32;
    const float *x = a.x + static_cast<size_t>(row) * a.n_in;
    float sum = 0, largest = 0;
    if (row < a.n_rows)
        for (int i = threadIdx.x; i < a.n_in; i += round_threads) {
            sum += x[i] * x[i];
            largest = fmaxf(largest, fabsf(a.norm == nullptr ? x[i] : x[i] * a.norm[i]));
        }
    sum = lanes_sum(sum, 1, 32);
    largest = lanes_max(largest, 1, 32);
    if (lane == 0) {
        sums[threadIdx.x / 32] = sum;
        maxima[threadIdx.x / 32] = largest;
    }
    __syncthreads();
    sum = largest = 0;
    for (int i = 0; i < round_threads / 32; ++i) {
        sum += sums[i];
        largest = fmaxf(largest, maxima[i]);
    }
    const float scale = a.is_normed ? 1.0F / sqrtf(sum / a.n_in + a.eps) : 1.0F;
    const int exponent = static_cast<int>(float_bits(largest * scale) >> 23 & 255U);
    const bool is_plain = exponent > 0 && exponent < 254;
    const float factor = is_plain ? __uint_as_float(static_cast<unsigned>(254 - exponent) << 23) : 1.0F;
    if (threadIdx.x == 0) a.row_factors[row] = is_plain ? __uint_as_float(static_cast<unsigned>(exponent) << 23) : 1.0F;
    const int n_columns = a.n_units * a.unit_columns;
    for (int i = threadIdx.x * 8; i < n_columns; i += round_threads * 8) {
        unsigned words[4] = {0, 0, 0, 0};
        for (int j = 0; j < 8 && i < a.n_in && row < a.n_rows; ++j) {
            const float y = x[i + j] * scale * (a.norm == nullptr ? 1.0F : a.norm[i + j]) * factor;
            words[j / 2] |= static_cast<unsigned>(a.is_bf16 ? bf16_bits(y) : half_bits(y)) << (j % 2 * 16);
        }
        const size_t place = a.n_tiles == 0
                                 ? (static_cast<size_t>(row) * n_columns + i) / 8
                                 : (static_cast<size_t>(i / 32) * a.n_tiles + row / 8) * 32 + row % 8 * 4 + i % 32 / 8;
        *reinterpret_cast<uint4 *>(a.rounded + place * 16) = uint4{words[0], words[1], words[2], words[3]};
    }
}

// The shapes of thread blocks.  `together`: strips of a warp; `across`: warps side by side; `along`: warps that share
// the groups of a unit, which alone decides the order of sums.  Two stages of the widest must fit `shared_bytes`, which
// every card since Ampere has.
constexpr int shared_bytes = 101376;
template <class W, int variant, int n_tiles> struct BatchShape {
    static_assert(variant >= 0 && variant < 4);
    static constexpr bool fits_wide = 2 * (8 * W::unit_bytes + n_tiles * W::n_groups * 512) <= shared_bytes,
                          is_wide = variant == 2 || (variant == 3 && n_tiles < 8 && fits_wide);
    static constexpr int along = variant == 0 ? 4 : (variant == 3 ? 1 : 2), together = is_wide ? 2 : 1,
                         across = batch_threads / 32 / along, strips = together * across;
};

template <class W, class Shape, int n_tiles> struct StageMemory {
    static constexpr int rows_bytes = n_tiles * W::n_groups * 512,
                         stage_bytes = Shape::strips * W::unit_bytes + rows_bytes, fitting = shared_bytes / stage_bytes,
                         n_stages = fitting < 4 ? fitting : 4, total_bytes = n_stages * stage_bytes;
    static_assert(n_stages >= 2);
};
template <class W, int variant, int n_tiles>
using BatchMemory = StageMemory<W, BatchShape<W, variant, n_tiles>, n_tiles>;

// Multiplies units `begin` to `end` of the block's strips by row tiles: sums[strip of the warp][row tile], as `mma` has
// them.  unit_at(strip, unit) is where a unit is; rows_at(unit, i) is where vector i of the unit's row fragments is.
// Returns false in warps whose sums another one has added to its own.
template <class W, class Shape, int n_tiles, class UnitAt, class RowsAt>
__device__ inline bool sum_strips(char *shared, int begin, int end, const UnitAt &unit_at, const RowsAt &rows_at,
                                  float (&sums)[Shape::together][n_tiles][4]) {
    using Memory = StageMemory<W, Shape, n_tiles>;
    constexpr int n = W::n_groups / Shape::along;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int side = warp % Shape::across, first = warp / Shape::across * n;
    auto fetch = [&](int unit) {
        char *to = shared + (unit - begin) % Memory::n_stages * Memory::stage_bytes;
        constexpr int vectors = W::unit_bytes / 16;
        for (int i = threadIdx.x; i < Shape::strips * vectors; i += batch_threads)
            copy_async(to + i * 16, unit_at(i / vectors, unit) + i % vectors * 16);
        for (int i = threadIdx.x; i < Memory::rows_bytes / 16; i += batch_threads)
            copy_async(to + Shape::strips * W::unit_bytes + i * 16, rows_at(unit, i));
    };
    for (int i = 0; i < Memory::n_stages - 1; ++i) {
        if (begin + i < end) fetch(begin + i);
        commit_copies();
    }
    for (int unit = begin; unit < end; ++unit) {
        wait_for_copies<Memory::n_stages - 2>();
        __syncthreads();
        if (unit + Memory::n_stages - 1 < end) fetch(unit + Memory::n_stages - 1);
        commit_copies();
        const char *stage = shared + (unit - begin) % Memory::n_stages * Memory::stage_bytes;
        const char *own = stage + side * Shape::together * W::unit_bytes, *rows = stage + Shape::strips * W::unit_bytes;
        typename W::template Scales<n> scales[Shape::together];
#pragma unroll
        for (int s = 0; s < Shape::together; ++s)
            scales[s] = W::template scales<n>(own + s * W::unit_bytes, first, lane);
#pragma unroll
        for (int i = 0; i < n; i += W::together) {
            typename W::Codes codes[Shape::together];
#pragma unroll
            for (int s = 0; s < Shape::together; ++s) codes[s] = W::codes(own + s * W::unit_bytes, first + i, lane);
#pragma unroll
            for (int j = i; j < i + W::together; ++j) {
                unsigned weights[Shape::together][2][4];
#pragma unroll
                for (int s = 0; s < Shape::together; ++s) W::template fragments<n>(scales[s], codes[s], j, weights[s]);
#pragma unroll
                for (int tile = 0; tile < n_tiles; ++tile) {
                    const uint4 x =
                        *reinterpret_cast<const uint4 *>(rows + (((first + j) * n_tiles + tile) * 32 + lane) * 16);
#pragma unroll
                    for (int s = 0; s < Shape::together; ++s) {
                        multiply_add<W::is_bf16>(sums[s][tile], weights[s][0], x.x, x.y);
                        multiply_add<W::is_bf16>(sums[s][tile], weights[s][1], x.z, x.w);
                    }
                }
            }
        }
    }
    if (Shape::along > 1) { // the first warp of a side adds the others' sums in order
        wait_for_copies<0>();
        __syncthreads();
        constexpr int side_numbers = Shape::together * n_tiles * 4 * 32;
        auto *kept = reinterpret_cast<float *>(shared);
        float *mine = kept + (warp - Shape::across) * side_numbers + lane;
        if (warp >= Shape::across)
#pragma unroll
            for (int i = 0; i < Shape::together * n_tiles * 4; ++i)
                mine[i * 32] = sums[i / (n_tiles * 4)][i / 4 % n_tiles][i % 4];
        __syncthreads();
        if (warp >= Shape::across) return false;
        for (int other = 0; other < Shape::along - 1; ++other)
#pragma unroll
            for (int i = 0; i < Shape::together * n_tiles * 4; ++i)
                sums[i / (n_tiles * 4)][i / 4 % n_tiles][i % 4] +=
                    kept[(other * Shape::across + side) * side_numbers + i * 32 + lane];
    }
    return true;
}

// Adds the factors and the summand to a sum.
__device__ inline void give_sum(const BatchArgs &a, int row, int column, float sum) {
    const size_t at = static_cast<size_t>(row) * a.n_out + column;
    const float made = sum * a.factors[column] * a.row_factors[row];
    a.out[at] = a.added == nullptr ? made : made + a.added[at];
}

// Grid: strips by BatchShape, 1, splits; dynamic shared memory.
template <class W, int variant, int n_tiles>
__global__ void __launch_bounds__(batch_threads, 2) multiply_rows(BatchArgs a) {
    using Shape = BatchShape<W, variant, n_tiles>;
    DYNAMIC_SHARED_MEMORY(shared_units);
    const int lane = threadIdx.x % 32, side = threadIdx.x / 32 % Shape::across;
    const int first_strip = blockIdx.x * Shape::strips, split = blockIdx.z;
    const int begin = a.n_units * split / a.n_splits, end = a.n_units * (split + 1) / a.n_splits;
    float sums[Shape::together][n_tiles][4] = {};
    auto unit_at = [&](int strip, int unit) {
        return a.units + (static_cast<size_t>(min(first_strip + strip, a.n_strips - 1)) * a.n_units + unit) * W::unit_bytes;
    };
    auto rows_at = [&](int unit, int i) {
        return a.rounded + static_cast<size_t>(unit) * (n_tiles * W::n_groups * 512) + i * 16;
    };
    if (!sum_strips<W, Shape, n_tiles>(shared_units, begin, end, unit_at, rows_at, sums)) return;
#pragma unroll
    for (int s = 0; s < Shape::together; ++s)
#pragma unroll
        for (int tile = 0; tile < n_tiles; ++tile)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = (first_strip + side * Shape::together + s) * 16 + lane / 4 + i / 2 * 8;
                const int row = tile * 8 + lane % 4 * 2 + i % 2;
                if (row >= a.n_rows || column >= a.n_out) continue;
                if (a.n_splits == 1)
                    give_sum(a, row, column, sums[s][tile][i]);
                else
                    a.parts[(static_cast<size_t>(split) * a.n_rows + row) * (16 * a.n_strips) + column] =
                        sums[s][tile][i];
            }
}

// Grid: columns in blocks of `batch_threads`, then rows.
inline __global__ void __launch_bounds__(batch_threads) add_parts(BatchArgs a) {
    const int column = blockIdx.x * batch_threads + threadIdx.x, row = blockIdx.y;
    if (column >= a.n_out) return;
    float sum = 0;
    for (int split = 0; split < a.n_splits; ++split)
        sum += a.parts[(static_cast<size_t>(split) * a.n_rows + row) * (16 * a.n_strips) + column];
    give_sum(a, row, column, sum);
}

} // namespace quire_cuda
