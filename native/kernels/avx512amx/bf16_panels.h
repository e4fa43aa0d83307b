// Products of rows of BF16 with weights that are brought to BF16 panel by panel: some columns of all output rows of a
// part, as tiles for the second operand, which stay in the second-level cache while all rows of the part are multiplied
// with them.  Sums wait in memory in between.  The order of all operations is the same for one row and for many, and
// however rows and output rows are divided.
//
// Weights: a class with fill(first column, number of steps of 32 columns, panel): tile of output rows t at
// panel + t * panel_tile_bytes, one tile of 16 pairs of columns for every step, zeros behind the last column.
#pragma once

#include "kernels/avx512amx/bf16_blocks.h"
#include "kernels/matmul_kernels.h"

namespace quire {
namespace {

constexpr int panel_columns = 1024;
constexpr int64_t panel_tile_bytes = panel_columns / pair_columns * tile_bytes_bf16;
constexpr int64_t tile_floats = tile_bytes_bf16 / 4;
static_assert(bf16_part_rows % block_rows == 0);
static_assert(bf16_scratch_bytes >=
              bf16_part_tiles * (bf16_part_rows / block_rows * tile_bytes_bf16 + panel_tile_bytes));

template <class Blocks, class Weights> class PanelProduct {
  public:
    // `tiles_per`: tiles of 16 output rows that one of part.weights' is.
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
        // Few rows are soon done with a panel: a small one stays in the first-level cache.
        const int64_t at_once = part_.n_rows <= 2 * block_rows ? 64 : panel_columns;
        for (int64_t k = 0; k < n_in; k += at_once) {
            const int64_t n = n_in - k < at_once ? n_in - k : at_once;
            const int64_t n_steps = (n + pair_columns - 1) / pair_columns;
            weights_.fill(k, n_steps, panel_);
            const Columns columns{k, n_steps, k == 0, k + at_once >= n_in};
            for (int block = 0; block < n_blocks_; block += 2) {
                const bool two = block + 1 < n_blocks_;
                int t = 0;
                for (; t + 1 < n_tiles_; t += 2)
                    two ? multiply<2, 2>(blocks, columns, block, t) : multiply<1, 2>(blocks, columns, block, t);
                if (t < n_tiles_)
                    two ? multiply<2, 1>(blocks, columns, block, t) : multiply<1, 1>(blocks, columns, block, t);
            }
        }
        write_narrow_tile();
    }

  private:
    struct Columns {
        int64_t first, n_steps;
        bool are_first, are_last;
    };

    // The last of several blocks begins early enough to be whole, and computes some rows a second time.
    int first_row(int block) const {
        const int row = block * block_rows;
        return part_.first_row + (row + rows_ <= part_.n_rows ? row : part_.n_rows - rows_);
    }
    float *sums(int block, int t) const { return sums_ + (int64_t{block} * n_tiles_ + t) * tile_floats; }
    bool is_whole(int t) const { return (t + 1) * 16 <= columns_left_; }

    template <int rows, int columns> void multiply(const Blocks &blocks, const Columns &k, int block, int t) const {
        const int64_t stride = bf16_row_bytes(part_.weights->n_in);
        // Sums of the last columns go where they belong, if whole tiles fit there.
        const bool to_out = k.are_last && is_whole(t + columns - 1);
        BlockProduct p{};
        p.a_stride = stride;
        p.n_steps = k.n_steps;
        p.to_stride = to_out ? part_.out_stride * 4 : 64;
        for (int i = 0; i < rows; ++i) {
            const int row = first_row(block + i);
            p.a[i] = reinterpret_cast<const uint8_t *>(part_.bf16) + row * stride + k.first * 2;
            for (int j = 0; j < columns; ++j) {
                float *kept = sums(block + i, t + j);
                p.from[i][j] = k.are_first ? nullptr : kept;
                p.to[i][j] = to_out ? part_.out + row * part_.out_stride + first_column_ + (t + j) * 16 : kept;
            }
        }
        for (int j = 0; j < columns; ++j) p.b[j] = panel_ + (t + j) * panel_tile_bytes;
        // What is written there comes from memory first; a store of a tile would wait for it.
        for (int i = 0; to_out && i < rows; ++i) {
            for (int r = 0; r < rows_; ++r) {
                for (int j = 0; j < columns; ++j) __builtin_prefetch(p.to[i][j] + r * part_.out_stride, 1);
            }
        }
        blocks.template multiply<rows, columns>(p);
    }

    // Where the last tile has output rows beyond the matrix, it and the one multiplied with it wait in memory.
    void write_narrow_tile() const {
        if (n_tiles_ == 0 || is_whole(n_tiles_ - 1)) return;
        const int first = n_tiles_ % 2 == 0 ? n_tiles_ - 2 : n_tiles_ - 1;
        for (int block = 0; block < n_blocks_; ++block) {
            for (int t = first; t < n_tiles_; ++t) {
                const int64_t left = columns_left_ - t * 16, n = left < 16 ? left : 16;
                for (int r = 0; r < rows_; ++r)
                    std::memcpy(part_.out + (first_row(block) + r) * part_.out_stride + first_column_ + t * 16,
                                sums(block, t) + r * 16, static_cast<size_t>(n) * sizeof(float));
            }
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
