// Products with BF16 weights where VDPBF16PS is: activations are rounded to BF16, too, and two columns are multiplied at
// a time, in the same order for one row and for many.  The instruction counts subnormal numbers as zero.
#include <immintrin.h>

#include "kernels/matmul_kernels.h"

namespace quire {
namespace {

constexpr int lanes = 16;
constexpr int n_registers = float_tile_rows / lanes;
constexpr int max_block_rows = 6;
constexpr int ahead_bytes = 4096; // see matmul_tile.h

// The columns k and k + 1 of 32 output rows as pairs: rows 0-3, 8-11, 16-19, 24-27 and the others.
[[gnu::always_inline]] inline void load_pairs(__m512i even, __m512i odd, __m512bh *pairs) {
    pairs[0] = reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(even, odd));
    pairs[1] = reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(even, odd));
}

// Rounded to nearest even, [n_in] and up to a multiple of 32 with zeros.
void round_row(const float *from, int64_t n_in, uint16_t *to) {
    for (int64_t k = 0; k < n_in; k += 2 * lanes) {
        const int64_t left = n_in - k;
        const auto mask = left >= 2 * lanes ? ~0U : (1U << left) - 1;
        const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from + k);
        const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> lanes), from + k + lanes);
        _mm512_storeu_si512(to + k, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
}

template <int n_rows>
[[gnu::always_inline]] inline void add_pair(const __m512bh (&weights)[n_registers], const uint16_t *const (&x)[n_rows],
                                            int64_t k, __m512 (&sums)[n_rows][n_registers]) {
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; ++r) {
        int32_t pair;
        __builtin_memcpy(&pair, x[r] + k, sizeof pair);
        const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 8
        for (int t = 0; t < n_registers; ++t) sums[r][t] = _mm512_dpbf16_ps(sums[r][t], weights[t], both);
    }
}

void store(const MatmulPart &part, int64_t row, int64_t column, const __m512 *sums) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int t = 0; t < n_registers; ++t) {
        const int64_t begin = column + t * lanes, left = part.weights->n_out - begin;
        const __mmask16 mask = left >= lanes ? 0xffff : left <= 0 ? 0 : static_cast<__mmask16>((1 << left) - 1);
        const __m512 *pair = sums + t / 2 * 2;
        const __m512 in_order = _mm512_permutex2var_ps(pair[0], t % 2 == 0 ? first : second, pair[1]);
        _mm512_mask_storeu_ps(part.out + row * part.out_stride + begin, mask, in_order);
    }
}

template <int n_rows> void multiply_block(const MatmulPart &part, const uint16_t *tile, int64_t column, int64_t row) {
    const int64_t n_in = part.weights->n_in, padded = (n_in + 31) / 32 * 32;
    const uint16_t *x[n_rows];
    for (int r = 0; r < n_rows; ++r) {
        uint16_t *to = reinterpret_cast<uint16_t *>(part.scratch) + r * padded;
        round_row(part.raw + (row + r) * n_in, n_in, to);
        x[r] = to;
    }
    __m512 sums[n_rows][n_registers];
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 8
        for (int t = 0; t < n_registers; ++t) sums[r][t] = _mm512_setzero_ps();
    }
    // Later blocks of rows find the tile in a cache.
    const bool from_memory = row == part.first_row;
    int64_t k = 0;
    __m512bh weights[n_registers];
    for (; k + 2 <= n_in; k += 2, tile += 2 * float_tile_rows) {
        if (from_memory) {
            const char *ahead = reinterpret_cast<const char *>(tile) + ahead_bytes;
            for (int i = 0; i < 4; ++i) __builtin_prefetch(ahead + i * register_bytes);
        }
        for (int half = 0; half < 2; ++half) {
            const uint16_t *at = tile + half * 2 * lanes;
            load_pairs(_mm512_loadu_si512(at), _mm512_loadu_si512(at + float_tile_rows), weights + half * 2);
        }
        add_pair(weights, x, k, sums);
    }
    if (k < n_in) { // the last of an odd number, with a zero
        for (int half = 0; half < 2; ++half)
            load_pairs(_mm512_loadu_si512(tile + half * 2 * lanes), _mm512_setzero_si512(), weights + half * 2);
        add_pair(weights, x, k, sums);
    }
    for (int r = 0; r < n_rows; ++r) store(part, row + r, column, sums[r]);
}

// Rows [row, end) of a tile, in blocks of up to max_rows.
template <int max_rows>
void multiply_rows(const MatmulPart &part, const uint16_t *tile, int64_t column, int64_t row, int64_t end) {
    for (; row + max_rows <= end; row += max_rows) multiply_block<max_rows>(part, tile, column, row);
    if constexpr (max_rows > 1) {
        if (row < end) multiply_rows<max_rows - 1>(part, tile, column, row, end);
    }
}

void multiply(const MatmulPart &part) {
    if (part.weights->format != WeightFormat::bf16) return avx512::float_matmul_kernels.multiply(part);
    const auto *values = reinterpret_cast<const uint16_t *>(part.weights->data);
    for (int64_t tile = part.first_tile; tile < part.first_tile + part.n_tiles; ++tile) {
        multiply_rows<max_block_rows>(part, values + tile * part.weights->n_in * float_tile_rows,
                                      tile * float_tile_rows, part.first_row, part.first_row + part.n_rows);
    }
}

} // namespace

const FloatMatmulKernels avx512bf16::float_matmul_kernels = {multiply};

} // namespace quire
