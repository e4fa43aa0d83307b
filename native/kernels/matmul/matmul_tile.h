// Products of codes: the division of a part into blocks, and the quantization of activations.
//
// L needs everything that matmul_block.h does, and the shapes of blocks: `few` for up to few.rows rows (0: never),
// `more` for more of them, both reading packed tiles, and `unpacked` for more than max_packed_rows.
//
// Each instruction set's file includes this once, after its CodeLanes; nothing here has external linkage.
#pragma once

#include "kernels/matmul/matmul_block.h"

namespace quire {
namespace {

// Contiguous tiles for some rows.
struct TileRun {
    const uint8_t *first;
    int64_t n_tiles, n_chunks, first_tile;
};

template <class L, class Weights, int n_rows, int n_tiles>
void multiply_block(const MatmulPart &part, const TileRun &tiles, int64_t t, int64_t row, PrefetchCursor &ahead) {
    Block<L, Weights, n_rows, n_tiles> block{{}, {*part.x, row, Weights::scale_columns == 16}};
    typename Block<L, Weights, n_rows, n_tiles>::Sums sums; // not a member, so that it stays in registers
    for (int i = 0; i < n_tiles; ++i)
        block.weights[i].chunk = tiles.first + (t + i) * tiles.n_chunks * Weights::chunk_bytes;
    PrefetchCursor own = ahead; // a copy, to stay in registers, too
    block.run(tiles.n_chunks, own, sums);
    ahead = own;
    block.store(part, tiles.first_tile + t, row, sums);
}

// The fewest rows a block can have if more than `above` rows are divided into about equal blocks of up to `most`.
constexpr int least_rows(int above, int most) {
    int least = most;
    for (int n = above + 1; n <= above + most; ++n) {
        const int each = n / ((n + most - 1) / most);
        if (each < least) least = each;
    }
    return least;
}

// Multiply n_rows; only blocks of `least` rows and more are compiled.
template <class L, class Weights, BlockShape shape, int least>
void multiply_rows(int n_rows, const MatmulPart &part, const TileRun &tiles, int64_t t, int64_t row,
                   PrefetchCursor &ahead) {
    if constexpr (shape.rows > least) {
        if (n_rows < shape.rows) {
            constexpr BlockShape fewer{shape.rows - 1, shape.tiles};
            return multiply_rows<L, Weights, fewer, least>(n_rows, part, tiles, t, row, ahead);
        }
    }
    multiply_block<L, Weights, shape.rows, shape.tiles>(part, tiles, t, row, ahead);
}

template <class L, class Weights, BlockShape shape, int least>
void multiply_all_rows(const MatmulPart &part, const TileRun &tiles, int64_t t, PrefetchCursor &ahead) {
    int row = part.first_row;
    const int end = row + part.n_rows;
    for (int left = (part.n_rows + shape.rows - 1) / shape.rows; left > 0; --left) {
        const int n = (end - row + left - 1) / left;
        if (part.n_rows > few_packed_rows) {
            float *out = part.out + row * part.out_stride + (tiles.first_tile + t) * tile_rows;
            ask_for_result<shape.tiles * tile_rows>(out, part.out_stride, n);
        }
        multiply_rows<L, Weights, shape, least>(n, part, tiles, t, row, ahead);
        row += n;
    }
}

// Multiply all tiles of a part with more than `above` rows.  Tiles left over, at the end of a matrix, use smaller
// blocks.
template <class L, class Weights, BlockShape shape, int above>
void multiply_tiles(const MatmulPart &part, const TileRun &tiles, PrefetchCursor ahead) {
    int64_t t = 0;
    for (; t + shape.tiles <= tiles.n_tiles; t += shape.tiles)
        multiply_all_rows<L, Weights, shape, least_rows(above, shape.rows)>(part, tiles, t, ahead);
    if constexpr (shape.tiles > 1) {
        constexpr BlockShape one{shape.rows, 1};
        for (; t < tiles.n_tiles; ++t)
            multiply_all_rows<L, Weights, one, least_rows(above, one.rows)>(part, tiles, t, ahead);
    }
}

template <BlockShape shape> constexpr int64_t blocks_of(int64_t n_rows, int64_t n_tiles) {
    return (n_rows + shape.rows - 1) / shape.rows * ((n_tiles + shape.tiles - 1) / shape.tiles);
}

// Multiply packed tiles.
template <class L, WeightFormat format, BlockShape shape, int above> void multiply_packed(const MatmulPart &part) {
    using From = Packed<L, format>;
    const int64_t n_chunks = part.weights->n_chunks(), tile_bytes = n_chunks * From::chunk_bytes;
    const uint8_t *first = part.weights->data + part.first_tile * tile_bytes;
    // If there are several blocks of rows, each prefetches a share of the next tiles.
    const int64_t n_blocks = blocks_of<shape>(part.n_rows, part.n_tiles);
    const bool once = shape.tiles == 1 && n_blocks == part.n_tiles;
    constexpr bool is_byte = From::layout.code_bits == 8;
    const uint8_t *at = first + (!once                         ? shape.tiles * tile_bytes
                                 : is_byte && part.n_rows <= 2 ? fast_ahead_bytes
                                                               : codes_ahead_bytes);
    const int64_t n_times = n_blocks * n_chunks * (From::chunk_groups / asking_groups);
    const bool is_foreseen = part.n_rows == 1 && !is_byte;
    const auto ahead =
        is_foreseen ? PrefetchCursor{} : PrefetchCursor::in_steps(at, part.n_tiles * tile_bytes, n_times);
    multiply_tiles<L, From, shape, above>(part, {first, part.n_tiles, n_chunks, part.first_tile}, ahead);
}

// Unpack all tiles of the part to its scratch memory.
template <class L, WeightFormat format> TileRun unpack_tiles(const MatmulPart &part) {
    using From = Packed<L, format>;
    using To = UnpackedOf<L, format>;
    constexpr int64_t spread = From::layout.columns / group_columns / To::chunk_groups;
    const int64_t n_chunks = part.weights->n_chunks();
    const uint8_t *first = part.weights->data + part.first_tile * n_chunks * From::chunk_bytes;
    uint8_t *to = part.scratch;
    for (int64_t c = 0; c < part.n_tiles * n_chunks; ++c, to += spread * To::chunk_bytes)
        unpack_chunk<L, format>({first + c * From::chunk_bytes}, to);
    return {part.scratch, part.n_tiles, n_chunks * spread, part.first_tile};
}

template <class L, WeightFormat format> void multiply_unpacked(const MatmulPart &part) {
    const TileRun unpacked = unpack_tiles<L, format>(part);
    // Prefetch the next strip while this one is multiplied.
    const int64_t strip_bytes = part.n_tiles * part.weights->tile_bytes();
    const auto ahead =
        PrefetchCursor::in_steps(part.weights->data + part.first_tile * part.weights->tile_bytes() + strip_bytes,
                                 strip_bytes, blocks_of<L::unpacked>(part.n_rows, part.n_tiles) * unpacked.n_chunks);
    multiply_tiles<L, UnpackedOf<L, format>, L::unpacked, L::max_packed_rows(chunk_layout(format))>(part, unpacked,
                                                                                                    ahead);
}

template <class L, WeightFormat format> void multiply(const MatmulPart &part) {
    constexpr int max_packed_rows = L::max_packed_rows(chunk_layout(format));
    if constexpr (L::few.rows > 0) {
        if (part.n_rows <= L::few.rows) return multiply_packed<L, format, L::few, 0>(part);
    }
    if constexpr (max_packed_rows > 0) {
        if (part.n_rows <= max_packed_rows) return multiply_packed<L, format, L::more, L::few.rows>(part);
    }
    if constexpr (max_packed_rows < any_rows) multiply_unpacked<L, format>(part);
}

template <class L> void multiply_any(const MatmulPart &part) {
    with_format(part.weights->format, [&]<WeightFormat format>() { multiply<L, format>(part); });
}

// Quantize a group of 32 activations; `from` is null after the last column.
template <class L> void quantize_group(const float *from, const QuantizedRows &to, int64_t row, int64_t group) {
    constexpr int n = group_columns / L::width;
    typename L::Vec x[n], largest = L::set(0.0F), finite = L::set(0.0F);
    for (int i = 0; i < n; ++i) {
        x[i] = from == nullptr ? L::set(0.0F) : L::load(from + i * L::width);
        largest = L::max(L::max(x[i], L::sub(L::set(0.0F), x[i])), largest);
        finite = L::add(finite, L::mul(x[i], L::set(0.0F)));
    }
    float scale = L::largest(largest) / 127.0F;
    // The maximum ignores NaN, but a row with NaN must not get finite results.
    if (!(L::total(finite) == 0.0F)) scale = __builtin_nanf("");
    // The inverse of a subnormal scale overflows, so such columns count as zero.
    const typename L::Vec inverse = L::set(scale > 1e-37F ? 1.0F / scale : 0.0F);
    int32_t sums[2] = {0, 0};
    for (int i = 0; i < n; ++i) {
        const typename L::Ints codes = L::rounded(L::mul(x[i], inverse));
        L::store_codes(to.codes(row) + group * group_columns + i * L::width, codes);
        sums[i * 2 / n] += L::total_ints(codes);
    }
    to.scales(row)[group] = scale;
    to.scaled_sums(row)[group] = scale * static_cast<float>(sums[0] + sums[1]);
    to.negated_sums(row)[group] = -(sums[0] + sums[1]);
    to.negated_half_sums(row)[2 * group] = -sums[0];
    to.negated_half_sums(row)[2 * group + 1] = -sums[1];
    for (int half = 0; half < 2; ++half)
        to.scaled_half_sums(row)[2 * group + half] = scale * static_cast<float>(sums[half]);
}

template <class L> void quantize(const float *x, int64_t first, int64_t last, QuantizedRows &to) {
    const int64_t n_groups = QuantizedRows::n_groups(to.n_in);
    for (int64_t row = first; row < last; ++row) {
        const float *from = x + row * to.n_in;
        // n_in is a multiple of 32; the last group may be padding.
        for (int64_t g = 0; g < n_groups; ++g)
            quantize_group<L>((g + 1) * group_columns <= to.n_in ? from + g * group_columns : nullptr, to, row, g);
    }
}

} // namespace
} // namespace quire
