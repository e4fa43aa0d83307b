// BF16 products in blocks of up to 32 rows and 32 output rows.  Every loaded tile is used in two products, so that
// loads take less time than products.  Few rows use blocks of up to 16 rows and 64 output rows.  The instruction is
// AMX's TDPBF16PS or its software model: see bf16_tiles.h.
#pragma once

#include "kernels/avx512amx/bf16_tiles.h"
#include "kernels/prefetch.h"

namespace quire {
namespace {

constexpr int64_t tile_bytes_bf16 = 1024;
constexpr int64_t strip_bytes = 4 * 64; // one line of each of four adjacent tiles
constexpr int64_t steps_ahead = 2;
// The ring holds the tiles of this many steps.  A tile is made this many steps before its product, so that it has
// reached the cache by then.
constexpr int64_t made_steps = 8, made_ahead = 6;
constexpr int64_t ring_bytes = made_steps * 2 * tile_bytes_bf16;
// Few rows read the lines of four adjacent tiles.  They prefetch `steps_ahead` steps ahead, interleaving this many
// pages.
constexpr int strip_log_pages = 2;
constexpr int64_t strip_ahead_bytes = ahead_bytes << strip_log_pages;
constexpr int64_t asked_bytes = 2 * tile_bytes_bf16; // prefetched with every step of two tiles
static_assert(asked_bytes == 8 * piece_bytes);

// `locality`: 3 for the first-level cache, 2 for the second-level one.
template <int locality> [[gnu::always_inline]] inline void ask_in_turn(const uint8_t *from, int64_t size_bytes) {
    for (int64_t i = 0; i < size_bytes; i += piece_bytes) {
        const uint8_t *piece = page_interleaved(from + i, strip_log_pages);
        for (int64_t line = 0; line < piece_bytes; line += 64) __builtin_prefetch(piece + line, 0, locality);
    }
}

// C [i][j] += A [i] x B [j] over some steps of 32 columns; i and j count tiles.
struct BlockProduct {
    const uint8_t *a[2];
    int64_t a_stride; // bytes between rows
    const uint8_t *b[4];
    int64_t b_stride, b_step; // bytes between pairs of columns (64 or strip_bytes), and between the tiles of two steps
    int64_t n_steps;
    const float *from[2][4]; // whole tiles; null: zeros
    float *to[2][4];
    int64_t to_stride[4]; // bytes between rows
    const uint8_t *ask; // read later, so every step prefetches asked_bytes of it; null: nothing
};

// Registers 0 to 3 hold C, 4 and 5 hold A, 6 and 7 hold B.  The constructor configures their shapes, and the destructor
// resets them.
class Bf16Blocks : TileInstructions {
  public:
    explicit Bf16Blocks(int n_rows) { // rows per tile of A, 1 to 16
        const TileShapes shapes = bf16_shapes(n_rows, 2);
        asm volatile("ldtilecfg %0" ::"m"(shapes));
    }
    ~Bf16Blocks() { asm volatile("tilerelease" ::: "memory"); }
    Bf16Blocks(const Bf16Blocks &) = delete;
    Bf16Blocks &operator=(const Bf16Blocks &) = delete;

    template <int rows, int columns> void multiply(const BlockProduct &p) const {
        p.b_stride == 64 ? multiply_tiles<rows, columns, 64>(p) : multiply_tiles<rows, columns, strip_bytes>(p);
    }

    // Starts from zeros.  make(step, j, to) makes the tiles of B one after the other, some steps before their products,
    // so that its work overlaps with products.  `ring` has ring_bytes.
    template <int rows, int columns, class Make>
    void multiply_made(const BlockProduct &p, uint8_t *ring, Make make) const {
        constexpr int64_t step_bytes = columns * tile_bytes_bf16;
        zero<0>();
        if constexpr (columns > 1) zero<1>();
        if constexpr (rows > 1) zero<2>();
        if constexpr (rows > 1 && columns > 1) zero<3>();
        const int64_t first = p.n_steps < made_ahead ? p.n_steps : made_ahead;
        for (int64_t step = 0; step < first; ++step) {
            for (int j = 0; j < columns; ++j) make(step, j, ring + step * step_bytes + j * tile_bytes_bf16);
        }
        Operands at{p.a[0], p.a[1], ring, ring + tile_bytes_bf16, p.a_stride, 64, step_bytes};
        load_first<rows, columns>(at);
        for (int64_t step = 0; step + 1 < p.n_steps; ++step) {
            const int64_t later = step + made_ahead;
            uint8_t *to = ring + later % made_steps * step_bytes;
            const bool makes = later < p.n_steps;
            at.b_step = (step + 1) % made_steps == 0 ? (1 - made_steps) * step_bytes : step_bytes;
            multiply_step<rows, columns, true>(at, [&](int place) __attribute__((always_inline)) {
                if (place != 2 && place != 6) return pause();
                const int j = place / 4;
                if (j < columns && makes) make(later, j, to + j * tile_bytes_bf16);
            });
        }
        multiply_step<rows, columns, false>(at, [](int) {});
        store_all<rows, columns>(p);
    }

    // Multiplies one tile of A with four adjacent tiles of B, and prefetches the lines of later steps.
    void multiply_strip(const BlockProduct &p) const {
        begin<0, 0, 0>(p);
        begin<1, 0, 1>(p);
        begin<2, 0, 2>(p);
        begin<3, 0, 3>(p);
        const uint8_t *a = p.a[0], *b = p.b[0];
        for (int64_t step = 0; step < p.n_steps; ++step, a += 64, b += p.b_step) {
            ask_in_turn<3>(b + strip_ahead_bytes, p.b_step);
            load<4>(a, p.a_stride);
            load<6>(b, p.b_stride);
            add_product<0, 4, 6>();
            load<7>(b + 64, p.b_stride);
            add_product<1, 4, 7>();
            load<6>(b + 128, p.b_stride);
            add_product<2, 4, 6>();
            load<7>(b + 192, p.b_stride);
            add_product<3, 4, 7>();
        }
        store<0>(p.to[0][0], p.to_stride[0]);
        store<1>(p.to[0][1], p.to_stride[1]);
        store<2>(p.to[0][2], p.to_stride[2]);
        store<3>(p.to[0][3], p.to_stride[3]);
    }

  private:
    // b_stride is a constant, so that addresses need no registers.
    template <int rows, int columns, int b_stride> void multiply_tiles(const BlockProduct &p) const {
        begin<0, 0, 0>(p);
        if constexpr (columns > 1) begin<1, 0, 1>(p);
        if constexpr (rows > 1) begin<2, 1, 0>(p);
        if constexpr (rows > 1 && columns > 1) begin<3, 1, 1>(p);
        p.ask == nullptr ? multiply_steps<rows, columns, b_stride, false>(p)
                         : multiply_steps<rows, columns, b_stride, true>(p);
        store_all<rows, columns>(p);
    }

    // Prefetches for the steps after the next one, as neither 32 rows nor the columns of two tiles stay in the
    // first-level cache.  Some lines are prefetched between any two tile instructions: all at once takes a third
    // longer.
    template <int rows, int columns, int b_stride, bool asks>
    [[gnu::always_inline]] static void multiply_steps(const BlockProduct &p) {
        Operands at{p.a[0], p.a[1], p.b[0], p.b[1], p.a_stride, b_stride, p.b_step};
        load_first<rows, columns>(at);
        const uint8_t *a[2], *b[2], *later = p.ask;
        auto between = [&](int place) __attribute__((always_inline)) {
            const int tile = place % 4 / 2, first_row = place % 2 * block_rows / 2;
            if (place < 4 && tile < rows) ask(a[tile] + first_row * p.a_stride, p.a_stride);
            if (place >= 4 && tile < columns) ask(b[tile] + first_row * b_stride, b_stride);
            if constexpr (asks) ask_in_turn<2>(later + place * piece_bytes, piece_bytes);
        };
        for (int64_t step = 1; step < p.n_steps; ++step, later += asked_bytes) {
            for (int i = 0; i < rows; ++i) a[i] = (i == 0 ? at.a0 : at.a1) + steps_ahead * 64;
            for (int j = 0; j < columns; ++j) b[j] = (j == 0 ? at.b0 : at.b1) + steps_ahead * p.b_step;
            multiply_step<rows, columns, true>(at, between);
        }
        auto rest = [&](int place) __attribute__((always_inline)) {
            if constexpr (asks) ask_in_turn<2>(later + place * piece_bytes, piece_bytes);
        };
        multiply_step<rows, columns, false>(at, rest);
    }
    // Prefetches half of a tile's lines.
    [[gnu::always_inline]] static void ask(const uint8_t *lines, int64_t stride) {
        for (int r = 0; r < block_rows / 2; ++r) __builtin_prefetch(lines + r * stride);
    }

    template <int rows, int columns> [[gnu::always_inline]] static void store_all(const BlockProduct &p) {
        store<0>(p.to[0][0], p.to_stride[0]);
        if constexpr (columns > 1) store<1>(p.to[0][1], p.to_stride[1]);
        if constexpr (rows > 1) store<2>(p.to[1][0], p.to_stride[0]);
        if constexpr (rows > 1 && columns > 1) store<3>(p.to[1][1], p.to_stride[1]);
    }

    template <int c, int i, int j> [[gnu::always_inline]] static void begin(const BlockProduct &p) {
        if (p.from[i][j] == nullptr) {
            zero<c>();
        } else {
            load<c>(p.from[i][j], 64);
        }
    }
};

class Bf16BlocksInSoftware {
  public:
    explicit Bf16BlocksInSoftware(int n_rows) : n_rows_(n_rows) {}

    template <int rows, int columns> void multiply(const BlockProduct &p) const {
        each_tile<rows, columns>([&](int i, int j) {
            float sums[block_rows * 16] = {};
            if (p.from[i][j] != nullptr) std::memcpy(sums, p.from[i][j], sizeof sums);
            Tiles::add<1>({p.a[i], p.a_stride, p.b[j], p.b_stride, 0, p.b_step, p.n_steps, sums, 64});
            store(sums, p, i, j);
        });
    }
    template <int rows, int columns, class Make>
    void multiply_made(const BlockProduct &p, uint8_t *ring, Make make) const {
        float sums[rows][columns][block_rows * 16] = {};
        for (int64_t step = 0; step < p.n_steps; ++step) {
            for (int j = 0; j < columns; ++j) make(step, j, ring + j * tile_bytes_bf16);
            each_tile<rows, columns>([&](int i, int j) {
                Tiles::add<1>(
                    {p.a[i] + step * 64, p.a_stride, ring + j * tile_bytes_bf16, 64, 0, 0, 1, sums[i][j], 64});
            });
        }
        each_tile<rows, columns>([&](int i, int j) { store(sums[i][j], p, i, j); });
    }
    void multiply_strip(const BlockProduct &p) const { multiply<1, 4>(p); }

  private:
    using Tiles = Bf16TilesInSoftware;

    template <int rows, int columns, class Act> void each_tile(Act act) const {
        Tiles::set_rows(n_rows_);
        for (int i = 0; i < rows; ++i)
            for (int j = 0; j < columns; ++j) act(i, j);
        Tiles::release();
    }
    void store(const float *sums, const BlockProduct &p, int i, int j) const {
        for (int row = 0; row < n_rows_; ++row)
            std::memcpy(reinterpret_cast<uint8_t *>(p.to[i][j]) + row * p.to_stride[j], sums + row * 16, 64);
    }
    int n_rows_;
};

} // namespace
} // namespace quire
