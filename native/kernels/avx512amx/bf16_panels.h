// Products of BF16 rows with BF16 weights, or with weights that are converted to BF16.  Many rows go panel by panel: a
// panel is some columns of all output rows of a part.  It stays in the second-level cache while all rows of the part
// are multiplied with it, and sums wait in memory in between.  Up to 32 rows go tile by tile, and each tile is
// multiplied at once.  All operations have the same order for one row and for many, however rows and output rows are
// divided.
//
// `Weights` is a class with
// - columns_at_once(number of rows, first column): how many columns a panel has; the first is a multiple of 32;
// - prepare(first column, columns, panel): make the panel's tiles, for the second operand;
// - place(tile of 16 output rows, first column, columns, panel): where the tile of the first 32 columns is;
// - if not are_made: ask_first(columns), which prefetches for the first tiles of that many columns; read_after(tile,
//   first column, columns), the memory to prefetch while two tiles from `tile` on are first multiplied, or null;
// - are_made: true if tiles have to be made; then also make_tile(tile of 16 output rows, step of 32 columns, target),
//   and ask_ahead(tile, step), which prefetches memory that is read some steps later.
#pragma once

#include "kernels/avx512amx/bf16_blocks.h"
#include "kernels/matmul/matmul_kernels.h"

namespace quire {
namespace {

constexpr int panel_columns = 1024;
constexpr int64_t panel_tile_bytes = panel_columns / pair_columns * tile_bytes_bf16;
constexpr int64_t tile_floats = tile_bytes_bf16 / 4;
static_assert(bf16_part_rows % block_rows == 0 && bf16_scratch_bytes >= ring_bytes);
static_assert(bf16_scratch_bytes >=
              bf16_part_tiles * (bf16_part_rows / block_rows * tile_bytes_bf16 + panel_tile_bytes));

// A tile of the second operand, and where those of the next steps are.
struct TilePlace {
    const uint8_t *first;
    int64_t stride, step;
};
inline TilePlace place_in_panel(const uint8_t *panel, int tile) {
    return {panel + tile * panel_tile_bytes, 64, tile_bytes_bf16};
}

template <class Blocks, class Weights> class PanelProduct {
  public:
    // `tiles_per`: how many tiles of 16 output rows are in one tile of part.weights.
    PanelProduct(const MatmulPart &part, Weights weights, int tiles_per)
        : part_(part), weights_(weights), rows_(part.n_rows < block_rows ? part.n_rows : block_rows),
          n_blocks_((part.n_rows + block_rows - 1) / block_rows), first_column_(part.first_tile * tiles_per * 16),
          columns_left_(part.weights->n_out - first_column_),
          n_tiles_(static_cast<int>(columns_left_ < part.n_tiles * tiles_per * 16 ? (columns_left_ + 15) / 16
                                                                                  : part.n_tiles * tiles_per)),
          panel_(part.scratch), sums_(reinterpret_cast<float *>(part.scratch + bf16_part_tiles * panel_tile_bytes)) {}

    void run() const {
        const Blocks blocks(rows_);
        const int64_t n_in = part_.weights->n_in;
        if constexpr (Weights::are_made) {
            if (n_blocks_ <= 2) {
                n_blocks_ == 1 ? make_and_multiply<1>(blocks) : make_and_multiply<2>(blocks);
                return write_narrow_tile();
            }
        }
        for (int64_t k = 0; k < n_in;) {
            const int64_t n = weights_.columns_at_once(part_.n_rows, k);
            weights_.prepare(k, n, panel_);
            if constexpr (!Weights::are_made) {
                if (k == 0 && n_blocks_ > 1) weights_.ask_first(n);
            }
            multiply_panel(blocks, {k, n, k == 0, k + n >= n_in});
            k += n;
        }
        write_narrow_tile();
    }

  private:
    struct Columns {
        int64_t first, n;
        bool are_first, are_last;
    };

    // The last of several blocks begins early enough to be whole, so it computes some rows a second time.
    int first_row(int block) const {
        const int row = block * block_rows;
        return part_.first_row + (row + rows_ <= part_.n_rows ? row : part_.n_rows - rows_);
    }
    float *sums(int block, int t) const { return sums_ + (int64_t{block} * n_tiles_ + t) * tile_floats; }
    bool is_whole(int t) const { return (t + 1) * 16 <= columns_left_; }

    void multiply_panel(const Blocks &blocks, const Columns &k) const {
        int t = 0;
        if (n_blocks_ == 1 && weights_.place(0, k.first, k.n, panel_).stride == strip_bytes) {
            for (; t + 4 <= n_tiles_; t += 4) multiply<1, 4>(blocks, k, 0, t);
        }
        for (int block = 0; block < n_blocks_; block += 2)
            block + 1 < n_blocks_ ? multiply_from<2>(blocks, k, block, t) : multiply_from<1>(blocks, k, block, t);
    }

    // Multiplies all tiles from t on.
    template <int rows> void multiply_from(const Blocks &blocks, const Columns &k, int block, int t) const {
        for (; t + 1 < n_tiles_; t += 2) multiply<rows, 2>(blocks, k, block, t);
        if (t < n_tiles_) multiply<rows, 1>(blocks, k, block, t);
    }

    template <int rows, int columns> void multiply(const Blocks &blocks, const Columns &k, int block, int t) const {
        BlockProduct p = product_of<rows, columns>(k, block, t);
        for (int j = 0; j < columns; ++j) {
            const TilePlace place = weights_.place(t + j, k.first, k.n, panel_);
            p.b[j] = place.first;
            p.b_stride = place.stride;
            p.b_step = place.step;
        }
        if constexpr (!Weights::are_made && columns == 2) {
            if (block == 0 && n_blocks_ > 1) p.ask = weights_.read_after(t, k.first, k.n);
        }
        if constexpr (columns == 4) {
            blocks.multiply_strip(p);
        } else {
            blocks.template multiply<rows, columns>(p);
        }
    }

    // Multiplies all columns.  Each tile serves all rows at once: it is read from the first-level cache, and sums stay
    // in registers.
    template <int rows> void make_and_multiply(const Blocks &blocks) const {
        int t = 0;
        for (; t + 1 < n_tiles_; t += 2) make_and_multiply<rows, 2>(blocks, t);
        if (t < n_tiles_) make_and_multiply<rows, 1>(blocks, t);
    }
    template <int rows, int columns> void make_and_multiply(const Blocks &blocks, int t) const {
        auto make = [&](int64_t step, int j, uint8_t *to) __attribute__((always_inline)) {
            weights_.ask_ahead(t + j, step);
            weights_.make_tile(t + j, step, to);
        };
        const Columns all{0, part_.weights->n_in, true, true};
        blocks.template multiply_made<rows, columns>(product_of<rows, columns>(all, 0, t), panel_, make);
    }

    // Everything but B.
    template <int rows, int columns> BlockProduct product_of(const Columns &k, int block, int t) const {
        const int64_t stride = bf16_row_bytes(part_.weights->n_in);
        BlockProduct p{};
        p.a_stride = stride;
        p.n_steps = (k.n + pair_columns - 1) / pair_columns;
        for (int i = 0; i < rows; ++i)
            p.a[i] = reinterpret_cast<const uint8_t *>(part_.bf16) + first_row(block + i) * stride + k.first * 2;
        for (int j = 0; j < columns; ++j) {
            // The last columns' sums go straight to the output, if a whole tile fits there.
            const bool to_out = k.are_last && is_whole(t + j);
            p.to_stride[j] = to_out ? part_.out_stride * 4 : 64;
            for (int i = 0; i < rows; ++i) {
                float *kept = sums(block + i, t + j);
                p.from[i][j] = k.are_first ? nullptr : kept;
                p.to[i][j] = kept;
                if (!to_out) continue;
                p.to[i][j] = part_.out + first_row(block + i) * part_.out_stride + first_column_ + (t + j) * 16;
                // A store first reads its lines from memory, and a tile store would wait for them: prefetch them.
                for (int r = 0; r < rows_; ++r) __builtin_prefetch(p.to[i][j] + r * part_.out_stride, 1);
            }
        }
        return p;
    }

    // Where the last tile has output rows beyond the matrix, its sums wait in memory.
    void write_narrow_tile() const {
        const int t = n_tiles_ - 1;
        if (t < 0 || is_whole(t)) return;
        const auto size_bytes = static_cast<size_t>(columns_left_ - t * 16) * sizeof(float);
        for (int block = 0; block < n_blocks_; ++block) {
            for (int r = 0; r < rows_; ++r)
                std::memcpy(part_.out + (first_row(block) + r) * part_.out_stride + first_column_ + t * 16,
                            sums(block, t) + r * 16, size_bytes);
        }
    }

    const MatmulPart &part_;
    Weights weights_;
    int rows_, n_blocks_;
    int64_t first_column_, columns_left_;
    int n_tiles_; // of 16 output rows
    uint8_t *panel_;
    float *sums_;
};

} // namespace
} // namespace quire
