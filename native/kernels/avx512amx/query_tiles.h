// Products of BF16 tiles for 1 to 32 rows at a time, on top of bf16_tiles.h.  More than 16 rows use two A, one below
// the other, so that each tile of B is loaded once for two products.
#pragma once

#include "kernels/avx512/bf16_pairs.h"
#include "kernels/avx512amx/bf16_tiles.h"

namespace quire {
namespace {

// Up to 16 rows use the registers like bf16_shapes.  With more, registers 0 and 1 are C of the first 16 rows, 2 and 3 C
// of the others, 4 and 5 are A, 6 and 7 are B.
constexpr TileShapes query_shapes(int n_rows) {
    if (n_rows <= 16) return bf16_shapes(n_rows, 1);
    TileShapes shapes = bf16_shapes(16, 2);
    shapes.rows[2] = shapes.rows[3] = shapes.rows[5] = static_cast<uint8_t>(n_rows - 16);
    return shapes;
}

class QueryTileRegisters : TileInstructions {
  public:
    // Configures the shapes of A and C in this thread, until release().
    static void set_rows(int n_rows) {
        if (rows_ == n_rows) return;
        const TileShapes shapes = query_shapes(n_rows);
        asm volatile("ldtilecfg %0" ::"m"(shapes));
        rows_ = n_rows;
    }
    static void release() {
        asm volatile("tilerelease" ::: "memory");
        rows_ = 0;
    }

    // Computes n adjacent C (2 or 4), starting from their contents or from zeros.  Calls other() in between, n_steps
    // times or twice as often.
    template <int n, bool fresh, class Other>
    [[gnu::always_inline]] static void add(const TileProducts &p, Other other) {
        if (rows_ <= 16) return add_few<n, fresh>(p, other);
        for (int64_t i = 0; i < n; i += 2)
            add_many<fresh>(p, static_cast<const uint8_t *>(p.b) + i * p.b_tile, p.c + i * 16, other);
    }

    // Rounds to nearest even; subnormal numbers become zero.
    [[gnu::always_inline]] static __m512i to_bf16(__m512 low, __m512 high) {
        __m512i both;
        asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(low), "v"(high));
        return both;
    }

  private:
    template <int n, bool fresh, class Other>
    [[gnu::always_inline]] static void add_few(const TileProducts &p, Other other) {
        begin<0, fresh>(p.c, p.c_stride);
        begin<1, fresh>(p.c + 16, p.c_stride);
        if constexpr (n == 4) {
            begin<2, fresh>(p.c + 32, p.c_stride);
            begin<3, fresh>(p.c + 48, p.c_stride);
        }
        const auto *a = static_cast<const uint8_t *>(p.a), *b = static_cast<const uint8_t *>(p.b);
        // Loads tiles before all products that use them: 15 to 35 % faster than loading and multiplying in turn.
        for (int64_t step = 0; step < p.n_steps; ++step, a += 64, b += p.b_step) {
            load<4>(a, p.a_stride);
            load<5>(b, p.b_stride);
            load<6>(b + p.b_tile, p.b_stride);
            if constexpr (n == 4) load<7>(b + 2 * p.b_tile, p.b_stride);
            add_product<0, 4, 5>();
            if constexpr (n == 4) load<5>(b + 3 * p.b_tile, p.b_stride);
            add_product<1, 4, 6>();
            if constexpr (n == 4) {
                add_product<2, 4, 7>();
                add_product<3, 4, 5>();
            }
            other();
        }
        store<0>(p.c, p.c_stride);
        store<1>(p.c + 16, p.c_stride);
        if constexpr (n == 4) {
            store<2>(p.c + 32, p.c_stride);
            store<3>(p.c + 48, p.c_stride);
        }
    }
    template <bool fresh, class Other>
    [[gnu::always_inline]] static void add_many(const TileProducts &p, const uint8_t *b, float *c, Other other) {
        float *below = c + 16 * p.c_stride / static_cast<int64_t>(sizeof(float));
        begin<0, fresh>(c, p.c_stride);
        begin<1, fresh>(c + 16, p.c_stride);
        begin<2, fresh>(below, p.c_stride);
        begin<3, fresh>(below + 16, p.c_stride);
        const auto *a = static_cast<const uint8_t *>(p.a);
        Operands at{a, a + 16 * p.a_stride, b, b + p.b_tile, p.a_stride, p.b_stride, p.b_step};
        load_first<2, 2>(at);
        auto between = [&](int place) __attribute__((always_inline)) { place == 7 ? other() : pause(); };
        for (int64_t step = 1; step < p.n_steps; ++step) multiply_step<2, 2, true>(at, between);
        multiply_step<2, 2, false>(at, between);
        store<0>(c, p.c_stride);
        store<1>(c + 16, p.c_stride);
        store<2>(below, p.c_stride);
        store<3>(below + 16, p.c_stride);
    }
    template <int i, bool fresh> [[gnu::always_inline]] static void begin(const float *from, int64_t stride) {
        if constexpr (fresh) {
            zero<i>();
        } else {
            load<i>(from, stride);
        }
    }
    static inline thread_local int rows_ = 0;
};

class QueryTilesInSoftware {
  public:
    static void set_rows(int n_rows) {
        Bf16TilesInSoftware::set_rows(n_rows);
        rows_ = n_rows;
    }
    static void release() { Bf16TilesInSoftware::release(); }

    template <int n, bool fresh, class Other> static void add(const TileProducts &p, Other other) {
        for (int64_t step = 0; step < p.n_steps; ++step) other();
        for (int row = 0; fresh && row < rows_; ++row)
            std::memset(reinterpret_cast<uint8_t *>(p.c) + row * p.c_stride, 0, n * 16 * sizeof(float));
        Bf16TilesInSoftware::add<n>(p);
    }

    static __m512i to_bf16(__m512 low, __m512 high) {
        return _mm512_inserti64x4(_mm512_castsi256_si512(rounded(low)), rounded(high), 1);
    }

  private:
    static __m256i rounded(__m512 x) {
        const __mmask16 normal = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(0x1p-126F), _CMP_NLT_UQ);
        return to_bf16_lanes(_mm512_maskz_mov_ps(normal, x));
    }
    static inline thread_local int rows_ = 0;
};

} // namespace
} // namespace quire
