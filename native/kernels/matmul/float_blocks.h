// The loops of products with weights of 16 or 32 bits: a few columns of a tile at a time, which stay in the first-level
// cache, for all rows, block by block.  Sums are kept in scratch memory in between, which does not change their bits.
//
// Each instruction set's file includes this once; nothing here has external linkage.
#pragma once

#include <cstring>

#include "kernels/prefetch.h"

namespace quire {
namespace {

// Up to this many rows there is a single block, and memory bandwidth is the limit.
constexpr int few_rows = 2;

// The inputs of a block of rows, other than the tile.
template <class Value> struct ColumnBlock {
    const Value *x; // activations of the first row
    int64_t x_stride, n_columns;
    PrefetchCursor ahead; // advanced for every column
};

// The sums of a block of rows with all output rows of a tile: those of the previous columns, [rows, float_tile_rows],
// or null for the first columns; and the output, which may be the same memory.
struct BlockSums {
    const float *before;
    float *to;
    int64_t to_stride;

    template <class L> [[gnu::always_inline]] typename L::Vec begin(int row, int i) const {
        return before == nullptr ? L::set(0.0F) : L::load(before + row * float_tile_rows + i);
    }
    BlockSums from(int i) const { return {before == nullptr ? nullptr : before + i, to + i, to_stride}; }
};

// Visit rows [row, end) in blocks of up to max_rows and about equal size.
template <int max_rows, class Visit> void for_row_blocks(int row, int end, Visit visit) {
    for (int left = (end - row + max_rows - 1) / max_rows; left > 0; --left) {
        const int n = (end - row + left - 1) / left;
        visit(row, n);
        row += n;
    }
}

template <class Columns, int n>
void add_rows(int n_rows, const ColumnBlock<typename Columns::X> &block, const typename Columns::Weight *tile,
              const BlockSums &sums) {
    if (n_rows == n) return Columns::template add<n>(block, tile, sums);
    if constexpr (n > 1) add_rows<Columns, n - 1>(n_rows, block, tile, sums);
}

// Rows of activations, [.., stride].
template <class Value> struct ActivationRows {
    const Value *x;
    int64_t stride;
};

// Columns::add<n>(block, tile, sums) multiplies n <= Columns::max_rows rows by all output rows of a tile.  The sums are
// in part.scratch, [rows, float_tile_rows]; the last columns write to the result.
template <class Columns> void multiply_tiles(const MatmulPart &part, ActivationRows<typename Columns::X> rows) {
    using Weight = typename Columns::Weight;
    constexpr int64_t columns_at_once = 32768 / (float_tile_rows * static_cast<int64_t>(sizeof(Weight)));
    const int64_t n_in = part.weights->n_in, n_out = part.weights->n_out;
    const int end = part.first_row + part.n_rows;
    // A single block of rows prefetches what it reads next; of several blocks, each prefetches a share of the next
    // columns.
    const bool once = part.n_rows <= Columns::max_rows;
    auto *kept = reinterpret_cast<float *>(part.scratch);
    for (int64_t t = part.first_tile; t < part.first_tile + part.n_tiles; ++t) {
        const auto *tile = reinterpret_cast<const Weight *>(part.weights->data + t * part.weights->tile_bytes());
        const int64_t first = t * float_tile_rows, n_left = n_out - first;
        float *out = part.out + first;
        for (int64_t k = 0; k < n_in; k += columns_at_once, tile += columns_at_once * float_tile_rows) {
            const int64_t n_columns = n_in - k < columns_at_once ? n_in - k : columns_at_once;
            const int64_t size_bytes = n_columns * float_tile_rows * static_cast<int64_t>(sizeof(Weight));
            const auto *bytes = reinterpret_cast<const uint8_t *>(tile);
            const int64_t soon = part.log_pages == 0 ? fast_ahead_bytes : ahead_bytes << part.log_pages;
            const uint8_t *next = bytes + (once ? soon : size_bytes);
            for_row_blocks<Columns::max_rows>(part.first_row, end, [&](int row, int n) {
                const int64_t done = row - part.first_row;
                const uint8_t *from = next + size_bytes * done / part.n_rows;
                auto ahead = PrefetchCursor::in_steps(from, size_bytes * n / part.n_rows, n_columns);
                ahead.log_pages = part.log_pages;
                BlockSums sums{k == 0 ? nullptr : kept + done * float_tile_rows, kept + done * float_tile_rows,
                               float_tile_rows};
                if (k + n_columns == n_in && n_left >= float_tile_rows) {
                    sums.to = out + row * part.out_stride;
                    sums.to_stride = part.out_stride;
                    if (!once) ask_for_result<float_tile_rows>(sums.to, part.out_stride, n);
                }
                add_rows<Columns, Columns::max_rows>(n, {rows.x + row * rows.stride + k, rows.stride, n_columns, ahead},
                                                     tile, sums);
            });
        }
        for (int row = part.first_row; n_left < float_tile_rows && row < end; ++row) {
            std::memcpy(out + row * part.out_stride, kept + (row - part.first_row) * float_tile_rows,
                        static_cast<size_t>(n_left) * sizeof(float));
        }
    }
}

} // namespace
} // namespace quire
