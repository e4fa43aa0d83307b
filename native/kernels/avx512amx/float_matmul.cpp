// Products of BF16 with BF16 by tiles, for one row and for many: every row count goes through the same instruction, so
// that a row's bits depend on it alone.  Weights of other types are left to AVX-512.
#include "kernels/avx512/column_pairs.h"
#include "kernels/avx512amx/bf16_tiles.h"
#include "kernels/matmul_kernels.h"
#include "kernels/prefetch.h"

namespace quire {
namespace {

// Columns that are interleaved at a time: with them the weights of a tile fill most of the first-level cache.
constexpr int columns_at_once = 256;
constexpr int side_by_side = 4; // tiles of 16 output rows
constexpr int64_t b_bytes = 16 * register_bytes, step_bytes = side_by_side * b_bytes; // of 32 columns
static_assert(bf16_tile_scratch_bytes >= columns_at_once / pair_columns * step_bytes);
static_assert(float_tile_rows == side_by_side * 16);

// Columns [0, n) of a tile, [column][64 output rows], as B [step][4][16][16][2]; zeros behind the last one.
void interleave_columns(const uint16_t *tile, int64_t n, uint8_t *to) {
    const __m512i zero = _mm512_setzero_si512();
    for (int64_t k = 0; k < n; k += pair_columns, to += step_bytes) {
        for (int pair = 0; pair < pair_columns / 2; ++pair) {
            const int64_t column = k + 2 * pair;
            const uint16_t *at = tile + column * float_tile_rows;
            prefetch(reinterpret_cast<const uint8_t *>(at) + ahead_bytes, 4 * register_bytes);
            for (int half = 0; half < 2; ++half, at += 2 * lanes) {
                __m512i pairs[2];
                interleave(column < n ? _mm512_loadu_si512(at) : zero,
                           column + 1 < n ? _mm512_loadu_si512(at + float_tile_rows) : zero, pairs);
                for (int i = 0; i < 2; ++i)
                    _mm512_store_si512(to + (2 * half + i) * b_bytes + pair * register_bytes, pairs[i]);
            }
        }
    }
}

// Sums of a row in the order of interleave() to n output rows.
void write_row(const float *sums, float *to, int64_t n) {
    alignas(64) float ordered[float_tile_rows];
    for (int half = 0; half < 2; ++half) {
        const float *from = sums + half * 2 * lanes;
        const __m512 two[] = {_mm512_loadu_ps(from), _mm512_loadu_ps(from + lanes)};
        store_sums(two, ordered + half * 2 * lanes);
    }
    std::memcpy(to, ordered, static_cast<size_t>(n < float_tile_rows ? n : float_tile_rows) * sizeof(float));
}

// Blocks of 16 rows; the last of several begins early enough to be whole, and computes some rows a second time.
template <class Tiles> void multiply_bf16(const MatmulPart &part) {
    const int64_t n_in = part.weights->n_in, n_out = part.weights->n_out, stride = bf16_row_bytes(n_in);
    const int rows = part.n_rows < block_rows ? part.n_rows : block_rows;
    const int n_blocks = (part.n_rows + block_rows - 1) / block_rows;
    auto first_row = [&](int block) {
        const int row = block * block_rows;
        return part.first_row + (row + rows <= part.n_rows ? row : part.n_rows - rows);
    };
    auto *sums = reinterpret_cast<float *>(part.scratch);
    const int64_t block_floats = int64_t{block_rows} * float_tile_rows;
    uint8_t *weights = part.scratch + n_blocks * block_floats * static_cast<int64_t>(sizeof(float));
    Tiles::set_rows(rows);
    for (int64_t t = part.first_tile; t < part.first_tile + part.n_tiles; ++t) {
        const auto *tile = reinterpret_cast<const uint16_t *>(part.weights->data) + t * n_in * float_tile_rows;
        std::memset(sums, 0, static_cast<size_t>(n_blocks * block_floats) * sizeof(float));
        for (int64_t k = 0; k < n_in; k += columns_at_once) {
            const int64_t n = n_in - k < columns_at_once ? n_in - k : columns_at_once;
            interleave_columns(tile + k * float_tile_rows, n, weights);
            for (int block = 0; block < n_blocks; ++block) {
                const uint16_t *x = part.bf16 + first_row(block) * stride / 2 + k;
                Tiles::template add<side_by_side>({x, stride, weights, register_bytes, b_bytes, step_bytes,
                                                   (n + pair_columns - 1) / pair_columns, sums + block * block_floats,
                                                   float_tile_rows * sizeof(float)});
            }
        }
        const int64_t column = t * float_tile_rows;
        for (int block = 0; block < n_blocks; ++block) {
            for (int r = 0; r < rows; ++r) {
                write_row(sums + block * block_floats + r * float_tile_rows,
                          part.out + (first_row(block) + r) * part.out_stride + column, n_out - column);
            }
        }
    }
    Tiles::release();
}

void multiply(const MatmulPart &part) { avx512::float_matmul_kernels.multiply(part); }

} // namespace

const FloatMatmulKernels avx512amx::float_matmul_kernels = {multiply, multiply_bf16<Bf16TileRegisters>};
const FloatMatmulKernels avx512amx::emulated_float_matmul_kernels = {multiply, multiply_bf16<Bf16TilesInSoftware>};

} // namespace quire
