// Products of many rows by tiles, 16 rows at a time.  Few rows and leftover rows do not use tiles: up to most_few_rows
// go through few_rows.cpp, others through the code of avx512vnni.  The bits are the same, because products of codes are
// exact and are scaled and added in the same order.
#include "kernels/avx512amx/dequantized.h"
#include "kernels/avx512amx/tile_registers.h"
#include "kernels/matmul/matmul_tile.h"

namespace quire {
namespace {

// Unpacked codes are signed: the zero point is subtracted.
struct TileLanes : CodeLanes {
    static constexpr bool signed_codes = true;
    static constexpr int code_class(int) { return 255; }
};

// Multiplies 16 rows with one tile of 16 output rows.  The sums over the columns of one scale go from the tile
// registers to memory while those of the next scale are computed.
template <template <int> class Tiles, class Weights> class TileBlock {
    using L = TileLanes;
    using Vec = L::Vec;
    static constexpr int k = Weights::scale_columns;
    static constexpr int parts = group_columns / k; // scales per group
    static constexpr int chunk_scales = Weights::chunk_groups * parts;
    static_assert(chunk_scales % 2 == 0 && Weights::zero_point == 0);

  public:
    TileBlock(const MatmulPart &part, const uint8_t *weights, int64_t row)
        : weights_{weights}, x_(*part.x), row_(row), stride_(QuantizedRows::row_bytes(part.x->n_in)) {}

    void run(Tiles<k> &tiles, int64_t n_chunks, float *out, int64_t out_stride, int n_columns) {
        Vec sums[block_rows];
#pragma GCC unroll 16
        for (int r = 0; r < block_rows; ++r) sums[r] = L::set(0.0F);
        const int64_t n = n_chunks * chunk_scales;
        multiply<0>(tiles, 0);
        for (int64_t i = 0; i < n; i += 2) {
            multiply<1>(tiles, i + 1);
            add<0>(i, sums);
            if (i + 2 < n) multiply<0>(tiles, i + 2);
            add<1>(i + 1, sums);
        }
#pragma GCC unroll 16
        for (int r = 0; r < block_rows; ++r) L::store_part(out + r * out_stride, sums[r], n_columns);
    }

  private:
    // i counts scales over all chunks.
    Weights chunk_of(int64_t i) const { return {weights_.chunk + i / chunk_scales * Weights::chunk_bytes}; }

    template <int slot> [[gnu::always_inline]] void multiply(Tiles<k> &tiles, int64_t i) {
        const uint8_t *codes = chunk_of(i).chunk + i % chunk_scales * (k / step_columns) * register_bytes;
        tiles.template multiply<slot>(x_.codes(row_) + i * k, stride_, codes, products_[slot]);
    }

    // The operations and their order are those of Block::add in matmul_block.h.
    template <int slot> [[gnu::always_inline]] void add(int64_t i, Vec (&sums)[block_rows]) const {
        const Weights chunk = chunk_of(i);
        const int at = static_cast<int>(i % chunk_scales);
        const int64_t group = i / parts;
        const auto *scales = reinterpret_cast<const uint8_t *>(x_.scales(row_) + group);
        const Vec scale = chunk.scale(at, 0);
#pragma GCC unroll 16
        for (int r = 0; r < block_rows; ++r) {
            const L::Ints product = _mm512_load_si512(products_[slot] + r * tile_rows);
            const Vec factor = L::mul(scale, L::set(read<float>(scales, r)));
            sums[r] = L::fused(L::to_floats(product), factor, sums[r]);
        }
        if constexpr (Weights::has_minima) {
            const Vec minimum = chunk.minimum(at, 0);
            const auto *whole = reinterpret_cast<const uint8_t *>(x_.scaled_sums(row_) + group);
            const auto *halves = reinterpret_cast<const uint8_t *>(x_.negated_half_sums(row_) + i);
#pragma GCC unroll 16
            for (int r = 0; r < block_rows; ++r) {
                const float sum = parts == 1 ? read<float>(whole, r)
                                             : read<float>(scales, r) * static_cast<float>(-read<int32_t>(halves, r));
                sums[r] = L::fused(minimum, L::set(sum), sums[r]);
            }
        }
    }
    template <class T> [[gnu::always_inline]] T read(const uint8_t *of_first_row, int r) const {
        return *reinterpret_cast<const T *>(of_first_row + r * stride_);
    }

    alignas(64) int32_t products_[2][block_rows * tile_rows];
    Weights weights_;
    QuantizedRows x_;
    int64_t row_, stride_;
};

template <template <int> class Tiles, WeightFormat format> void multiply_by_tiles(const MatmulPart &part) {
    using To = UnpackedOf<TileLanes, format>;
    const TileRun unpacked = unpack_tiles<TileLanes, format>(part);
    Tiles<To::scale_columns> tiles;
    for (int64_t t = 0; t < part.n_tiles; ++t) {
        const uint8_t *weights = unpacked.first + t * unpacked.n_chunks * To::chunk_bytes;
        const int64_t column = (part.first_tile + t) * tile_rows, left = part.weights->n_out - column;
        for (int64_t row = part.first_row; row < part.first_row + part.n_rows; row += block_rows) {
            TileBlock<Tiles, To> block(part, weights, row);
            block.run(tiles, unpacked.n_chunks, part.out + row * part.out_stride + column, part.out_stride,
                      static_cast<int>(left < tile_rows ? left : tile_rows));
        }
    }
}

template <template <int> class Tiles> void multiply_any_by_tiles(const MatmulPart &part) {
    with_format(part.weights->format, [&]<WeightFormat format>() { multiply_by_tiles<Tiles, format>(part); });
}

void quantize_as_vnni(const float *x, int64_t first, int64_t last, QuantizedRows &to) {
    avx512vnni::matmul_kernels.quantize(x, first, last, to);
}

template <template <int> class Tiles> void multiply_rows_by_tiles(const MatmulPart &part) {
    MatmulPart some = part;
    some.n_rows = part.n_rows / block_rows * block_rows;
    // Up to this many rows read packed weights.
    if (part.n_rows <= few_packed_rows) some.n_rows = 0;
    if (some.n_rows > 0) multiply_any_by_tiles<Tiles>(some);
    some.first_row += some.n_rows;
    some.n_rows = part.n_rows - some.n_rows;
    if (some.n_rows > avx512amx::most_few_rows) {
        avx512vnni::matmul_kernels.multiply(some);
    } else if (some.n_rows > 0) {
        avx512amx::multiply_few_rows(some);
    }
}

} // namespace

#if !defined(QUIRE_WITHOUT_AVX512AMX)
const MatmulKernels avx512amx::matmul_kernels = {quantize_as_vnni, multiply_rows_by_tiles<TileRegisters>,
                                                 multiply_dequantized<Bf16Blocks>};
#endif
#if !defined(QUIRE_WITHOUT_EMULATED_TILES)
const MatmulKernels avx512amx::emulated_matmul_kernels = {quantize_as_vnni, multiply_rows_by_tiles<TilesInSoftware>,
                                                          multiply_dequantized<Bf16BlocksInSoftware>};
#endif

} // namespace quire
