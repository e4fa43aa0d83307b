// Products with weights of 16 or 32 bits: single precision, one column after the other.
#include <immintrin.h>

#include <algorithm>

#include "kernels/matmul_kernels.h"

namespace quire {
namespace {

constexpr int lanes = 16;
constexpr int max_block_rows = 6;
constexpr int ahead_bytes = 4096; // see avx512vnni/matmul.cpp

template <WeightFormat format> __m512 load(const uint8_t *at) {
    if constexpr (format == WeightFormat::f32) return _mm512_loadu_ps(reinterpret_cast<const float *>(at));
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at));
    if constexpr (format == WeightFormat::f16) return _mm512_cvtph_ps(bits);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// n_rows of x times n_registers * 16 output rows, of which the first is `column`.
template <WeightFormat format, int n_rows, int n_registers>
void multiply_block(const MatmulPart &part, const uint8_t *tile, int64_t column, int64_t row) {
    constexpr int value_bytes = format == WeightFormat::f32 ? 4 : 2;
    const int64_t n_in = part.weights->n_in;
    const float *x[n_rows];
    for (int r = 0; r < n_rows; ++r) x[r] = part.raw + (row + r) * n_in;
    __m512 sums[n_rows][n_registers];
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < n_registers; ++t) sums[r][t] = _mm512_setzero_ps();
    }
    // Later blocks of rows find the tile in a cache.
    const bool from_memory = row == part.first_row;
    for (int64_t k = 0; k < n_in; ++k, tile += float_tile_rows * value_bytes) {
        if (from_memory) {
            for (int i = 0; i < n_registers * lanes * value_bytes; i += register_bytes)
                _mm_prefetch(reinterpret_cast<const char *>(tile + ahead_bytes + i), _MM_HINT_T0);
        }
        __m512 weights[n_registers];
#pragma GCC unroll 8
        for (int t = 0; t < n_registers; ++t) weights[t] = load<format>(tile + t * lanes * value_bytes);
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; ++r) {
            const __m512 value = _mm512_set1_ps(x[r][k]);
#pragma GCC unroll 8
            for (int t = 0; t < n_registers; ++t) sums[r][t] = _mm512_fmadd_ps(weights[t], value, sums[r][t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < n_registers; ++t) {
        const int64_t left = part.weights->n_out - column - t * lanes;
        const __mmask16 mask = left >= lanes ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1 << left) - 1);
#pragma GCC unroll 8
        for (int r = 0; r < n_rows; ++r)
            _mm512_mask_storeu_ps(part.out + (row + r) * part.out_stride + column + t * lanes, mask, sums[r][t]);
    }
}

// Rows [row, end) of a tile, in blocks of up to max_rows.
template <WeightFormat format, int max_rows>
void multiply_rows(const MatmulPart &part, const uint8_t *tile, int64_t column, int64_t row, int64_t end) {
    constexpr int value_bytes = format == WeightFormat::f32 ? 4 : 2;
    constexpr int n_registers = max_rows <= 3 ? 4 : 2;
    for (; row + max_rows <= end; row += max_rows) {
        for (int t = 0; t < float_tile_rows / lanes; t += n_registers)
            multiply_block<format, max_rows, n_registers>(part, tile + t * lanes * value_bytes, column + t * lanes,
                                                          row);
    }
    if constexpr (max_rows > 1)
        if (row < end) multiply_rows<format, max_rows - 1>(part, tile, column, row, end);
}

template <WeightFormat format> void multiply(const MatmulPart &part) {
    for (int64_t tile = part.first_tile; tile < part.first_tile + part.n_tiles; ++tile) {
        multiply_rows<format, max_block_rows>(part, part.weights->data + tile * part.weights->tile_bytes(),
                                              tile * float_tile_rows, part.first_row, part.first_row + part.n_rows);
    }
}

void multiply_any(const MatmulPart &part) {
    switch (part.weights->format) {
    case WeightFormat::f16: return multiply<WeightFormat::f16>(part);
    case WeightFormat::bf16: return multiply<WeightFormat::bf16>(part);
    default: return multiply<WeightFormat::f32>(part);
    }
}

} // namespace

const FloatMatmulKernels avx512::float_matmul_kernels = {multiply_any};

} // namespace quire
