// Products of BF16 with BF16 by tiles, for one row and for many: every row count goes through the same instruction, so
// that a row's bits depend on it alone.  Weights of other types are left to AVX-512.
#include "kernels/avx512amx/bf16_panels.h"
#include "kernels/prefetch.h"

namespace quire {
namespace {

// Tiles of 64 output rows, [column][output row].
struct Bf16Weights {
    const uint16_t *first;
    int64_t n_in, n_tiles;

    void fill(int64_t column, int64_t n_steps, uint8_t *panel) const {
        for (int64_t t = 0; t < n_tiles; ++t) {
            const int64_t left = n_in - column;
            fill_tile(first + (t * n_in + column) * float_tile_rows,
                      left < n_steps * pair_columns ? left : n_steps * pair_columns, panel + t * 4 * panel_tile_bytes);
        }
    }

    // Columns [0, n); zeros behind the last one.
    static void fill_tile(const uint16_t *tile, int64_t n, uint8_t *to) {
        // Output rows that unpacking the low and the high halves of 128 bits brings to the order of the rows.
        const __m512i halves = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
        const __m512i zero = _mm512_setzero_si512();
        for (int64_t k = 0; k < n; k += pair_columns, to += tile_bytes_bf16) {
            for (int pair = 0; pair < pair_columns / 2; ++pair) {
                const int64_t column = k + 2 * pair;
                const uint16_t *at = tile + column * float_tile_rows;
                prefetch(reinterpret_cast<const uint8_t *>(at) + ahead_bytes, 4 * 64);
                for (int half = 0; half < 2; ++half, at += 32) {
                    const __m512i even = column < n ? _mm512_loadu_si512(at) : zero;
                    const __m512i odd = column + 1 < n ? _mm512_loadu_si512(at + float_tile_rows) : zero;
                    const __m512i a = _mm512_permutexvar_epi64(halves, even), b = _mm512_permutexvar_epi64(halves, odd);
                    uint8_t *tiles = to + half * 2 * panel_tile_bytes + pair * 64;
                    _mm512_store_si512(tiles, _mm512_unpacklo_epi16(a, b));
                    _mm512_store_si512(tiles + panel_tile_bytes, _mm512_unpackhi_epi16(a, b));
                }
            }
        }
    }
};

template <class Blocks> void multiply_bf16(const MatmulPart &part) {
    const int64_t n_in = part.weights->n_in;
    const auto *first =
        reinterpret_cast<const uint16_t *>(part.weights->data) + part.first_tile * n_in * float_tile_rows;
    PanelProduct<Blocks, Bf16Weights>(part, {first, n_in, part.n_tiles}, float_tile_rows / 16).run();
}

void multiply(const MatmulPart &part) { avx512::float_matmul_kernels.multiply(part); }

} // namespace

const FloatMatmulKernels avx512amx::float_matmul_kernels = {multiply, multiply_bf16<Bf16Blocks>, true};
const FloatMatmulKernels avx512amx::emulated_float_matmul_kernels = {multiply, multiply_bf16<Bf16BlocksInSoftware>,
                                                                     true};

} // namespace quire
