// Products of few rows with packed tiles, which are limited by reading the weights.
//
// All tiles of a strip are read in parallel.  Several streams keep more lines of memory in flight than one stream does,
// however far ahead that one is prefetched: Sapphire Rapids prefetches per page, and only a few lines ahead in each.
#include <atomic>

#include "kernels/avx512vnni/vnni_lanes.h"
#include "kernels/matmul/matmul_tile.h"

namespace quire {
namespace {

using L = VnniLanes;
constexpr int few_rows = 8; // rows multiplied at a time

// Multiplies `n_rows` rows with all tiles of a part.
template <WeightFormat format, int n_rows> class FewRows {
    using Weights = Packed<L, format>;
    static_assert(L::width == tile_rows);
    // The number of tiles that have their products in registers at a time.  If all tiles do, so do the sums.
    static constexpr int at_once = n_rows <= 4 ? strip_tiles : 2, n_blocks = strip_tiles / at_once;
    using Tiles = Block<L, Weights, n_rows, at_once>;
    static constexpr int group_bytes =
        (Weights::chunk_bytes / Weights::chunk_groups + register_bytes - 1) / register_bytes * register_bytes;
    // Lines are prefetched this many chunks before their use: about 2048 bytes.
    static constexpr int64_t ahead_chunks = (2048 + Weights::chunk_bytes / 2) / Weights::chunk_bytes;
    static_assert(ahead_chunks > 0);

  public:
    // `next`: the distance from the end of these tiles to the start of the tiles that are read next.
    static void run(const MatmulPart &part, int64_t row, int64_t next) {
        const RowBlock<n_rows> x(*part.x, row, Weights::scale_columns == 16);
        const int64_t n_chunks = part.weights->n_chunks(), tile_bytes = n_chunks * Weights::chunk_bytes;
        const uint8_t *tiles[strip_tiles];
        // Only the last strip of a matrix may have fewer tiles; results beyond them are not stored.
        for (int t = 0; t < strip_tiles; ++t)
            tiles[t] = part.weights->data + (part.first_tile + (t < part.n_tiles ? t : 0)) * tile_bytes;
        typename Tiles::Sums sums[n_blocks];
#pragma GCC unroll 4
        for (int b = 0; b < n_blocks; ++b) {
#pragma GCC unroll 32
            for (int i = 0; i < n_rows * at_once; ++i) sums[b][i / at_once][i % at_once] = L::set(0.0F);
        }
        for (int64_t c = 0; c < n_chunks; ++c) {
            const int64_t ahead = (c + ahead_chunks) * Weights::chunk_bytes;
            add_chunk(x, tiles, c, c + ahead_chunks < n_chunks ? ahead : ahead + next, sums);
        }
#pragma GCC unroll 4
        for (int b = 0; b < n_blocks; ++b) Tiles::store(part, part.first_tile + b * at_once, row, sums[b]);
    }

  private:
    [[gnu::always_inline]] inline static void add_chunk(const RowBlock<n_rows> &x, const uint8_t *const *tiles,
                                                        int64_t chunk, int64_t ahead,
                                                        typename Tiles::Sums (&sums)[n_blocks]) {
        for (int g = 0; g < Weights::chunk_groups; ++g) {
#pragma GCC unroll 4
            for (int b = 0; b < n_blocks; ++b) {
                // Keep the compiler from holding shared values in registers, which the products need.
                if constexpr (n_blocks > 1) std::atomic_signal_fence(std::memory_order_seq_cst);
                Tiles block{{}, x};
#pragma GCC unroll 4
                for (int t = 0; t < at_once; ++t) {
                    const uint8_t *tile = tiles[b * at_once + t];
                    block.weights[t].chunk = tile + chunk * Weights::chunk_bytes;
                    prefetch<CacheLevel::first>(tile + ahead + g * group_bytes, group_bytes);
                }
                const int64_t group = chunk * Weights::chunk_groups + g;
                block.add(group, g, 0, sums[b]);
                if constexpr (Tiles::scale_parts == 2) block.add(group, g, 1, sums[b]);
            }
        }
    }
};

template <WeightFormat format, int most>
void multiply_block_of_few(int n_rows, const MatmulPart &part, int64_t row, int64_t next) {
    if constexpr (most > 1) {
        if (n_rows < most) return multiply_block_of_few<format, most - 1>(n_rows, part, row, next);
    }
    FewRows<format, most>::run(part, row, next);
}

template <WeightFormat format> void multiply_rows(const MatmulPart &part) {
    const int64_t tile_bytes = part.weights->tile_bytes();
    int row = part.first_row;
    for (int left = (part.n_rows + few_rows - 1) / few_rows; left > 0; --left) {
        const int n_rows = (part.first_row + part.n_rows - row + left - 1) / left;
        // The next rows start again at the beginning of these tiles, otherwise the next strip follows.
        const int64_t next = left > 1 ? -tile_bytes : (strip_tiles - 1) * tile_bytes;
        multiply_block_of_few<format, few_rows>(n_rows, part, row, next);
        row += n_rows;
    }
}

} // namespace

void avx512amx::multiply_few_rows(const MatmulPart &part) {
    with_format(part.weights->format, [&]<WeightFormat format>() { multiply_rows<format>(part); });
}

} // namespace quire
