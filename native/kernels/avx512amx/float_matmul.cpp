// Products of BF16 by BF16 with tiles, for one row and for many: any number of rows uses the same instruction, so a
// row's bits depend on it alone.  AVX-512 multiplies weights of other types.
#include "kernels/avx512amx/bf16_panels.h"

namespace quire {
namespace {

// Packed weights are tiles of 64 output rows in pairs of columns, which the instruction takes as its second operand
// directly.  Only the columns after the last whole 32 are copied and padded with zeros.
struct Bf16Weights {
    static constexpr bool are_made = false;
    const uint8_t *first;
    int64_t n_in, tile_bytes, n_tiles;

    int64_t whole_columns() const { return n_in / pair_columns * pair_columns; }
    int64_t columns_at_once(int n_rows, int64_t column) const {
        const int64_t left = (column < whole_columns() ? whole_columns() : n_in) - column;
        return n_rows <= block_rows || left < panel_columns ? left : panel_columns;
    }
    // Counts pairs of columns of all 64 output rows.
    const uint8_t *pairs(int64_t tile, int64_t column) const {
        return first + tile * tile_bytes + column * float_tile_rows * 2;
    }
    TilePlace place(int tile, int64_t column, int64_t n, const uint8_t *panel) const {
        if (n < pair_columns) return place_in_panel(panel, tile);
        return {pairs(tile / 4, column) + tile % 4 * 64, strip_bytes, strip_bytes * pair_columns / 2};
    }
    // Prefetches the first half of the first strip's columns.
    void ask_first(int64_t n) const { ask_in_turn<2>(first, n / pair_columns * asked_bytes); }
    // The four tiles of a strip are multiplied two by two.  The first two prefetch the second half of the strip's
    // columns, the others the first half of the next strip's.
    const uint8_t *read_after(int tile, int64_t column, int64_t n) const {
        if (n < pair_columns) return nullptr;
        if (tile % 4 == 0) return pairs(tile / 4, column + n / 2);
        if (tile / 4 + 1 < n_tiles) return pairs(tile / 4 + 1, column);
        return column + n < whole_columns() ? pairs(0, column + n) : nullptr;
    }
    void prepare(int64_t column, int64_t n, uint8_t *panel) const {
        if (n >= pair_columns) return;
        for (int64_t t = 0; t < 4 * n_tiles; ++t) {
            uint8_t *to = panel + t * panel_tile_bytes;
            std::memset(to, 0, tile_bytes_bf16);
            for (int64_t pair = 0; 2 * pair < n; ++pair)
                std::memcpy(to + pair * 64, pairs(t / 4, column + 2 * pair) + t % 4 * 64, 64);
        }
    }
};

template <class Blocks> void multiply_bf16(const MatmulPart &part) {
    const int64_t tile_bytes = part.weights->tile_bytes();
    const Bf16Weights weights{part.weights->data + part.first_tile * tile_bytes, part.weights->n_in, tile_bytes,
                              part.n_tiles};
    PanelProduct<Blocks, Bf16Weights>(part, weights, float_tile_rows / 16).run();
}

void multiply(const MatmulPart &of) {
    MatmulPart part = of;
    part.log_pages = strip_log_pages;
    avx512::float_matmul_kernels.multiply(part);
}

} // namespace

#if !defined(QUIRE_WITHOUT_AVX512AMX)
const FloatMatmulKernels avx512amx::float_matmul_kernels = {multiply, multiply_bf16<Bf16Blocks>, true};
#endif
#if !defined(QUIRE_WITHOUT_EMULATED_TILES)
const FloatMatmulKernels avx512amx::emulated_float_matmul_kernels = {multiply, multiply_bf16<Bf16BlocksInSoftware>,
                                                                     true};
#endif

} // namespace quire
