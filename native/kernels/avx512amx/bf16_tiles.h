// Products of BF16 tiles, C [rows][16] += A [rows][32] x B [16 pairs][16][2]: AMX's TDPBF16PS, or a software model of
// it, so that the code around it can be tested on machines without AMX.
//
// The instruction sums the products of even columns and those of odd columns separately, each with fused multiply-adds.
// It adds the two sums, then adds C.  Subnormal numbers count as zero, also in between (Intel's Software Developer's
// Manual, volume 2, TDPBF16PS).  So a product with zeros changes no bit of a sum.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "kernels/avx512amx/tile_registers.h"

namespace quire {
namespace {

constexpr int pair_columns = 32; // columns of one product

// Products that add up in the same C.  All strides and steps are in bytes.
struct TileProducts {
    const void *a;
    int64_t a_stride; // between rows; a step takes 64 bytes of each
    const void *b;
    int64_t b_stride, b_tile, b_step; // between pairs, between adjacent B, between steps
    int64_t n_steps;
    float *c;
    int64_t c_stride; // between rows; adjacent C are 64 bytes apart
};

// For registers 0 to 3 as C, the next n_a, 1 or 2, as A, the others as B.
constexpr TileShapes bf16_shapes(int n_rows, int n_a) {
    TileShapes shapes;
    for (int i = 0; i < 8; ++i) {
        shapes.row_bytes[i] = 64;
        shapes.rows[i] = static_cast<uint8_t>(i < 4 + n_a ? n_rows : 16);
    }
    return shapes;
}

// See TileRegisters for why the compiler's intrinsics are not used.
struct TileInstructions {
    template <int i> [[gnu::always_inline]] static void zero() { asm volatile("tilezero %%tmm%c0" ::"i"(i)); }
    template <int i> [[gnu::always_inline]] static void load(const void *from, int64_t stride) {
        asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(i), "r"(from), "r"(stride) : "memory");
    }
    template <int i> [[gnu::always_inline]] static void store(void *to, int64_t stride) {
        asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(i), "r"(to), "r"(stride) : "memory");
    }
    template <int c, int a, int b> [[gnu::always_inline]] static void add_product() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(c), "i"(a), "i"(b));
    }

    // The operands of the next step: 1 or 2 A, one below the other, and 1 or 2 adjacent B.  All strides are in bytes.
    struct Operands {
        const uint8_t *a0, *a1, *b0, *b1;
        int64_t a_stride, b_stride, b_step;
    };

    // Loads all of a step but the second A, which has a register for half of the step only.
    template <int rows, int columns> [[gnu::always_inline]] static void load_first(const Operands &at) {
        load<4>(at.a0, at.a_stride);
        load<6>(at.b0, at.b_stride);
        if constexpr (columns > 1) load<7>(at.b1, at.b_stride);
    }

    // Adds one step to registers 0 to 3, with A in 4 and 5 and B in 6 and 7.  `more`: another step follows.
    //
    // Each register is loaded for the next step as soon as its last product has begun.  between(0) to between(7) run
    // between tile instructions.  Both matter where another thread shares the core, which then looks less far ahead,
    // and where a load right after a product stalls: with operands in the first-level cache a product takes 27 ns, with
    // six other instructions in between 18 ns, and alone 16 ns.
    template <int rows, int columns, bool more, class Between>
    [[gnu::always_inline]] static void multiply_step(Operands &at, const Between &between) {
        add_product<0, 4, 6>();
        between(0);
        if constexpr (rows > 1) load<5>(at.a1, at.a_stride);
        between(1);
        if constexpr (columns > 1) add_product<1, 4, 7>();
        between(2);
        if constexpr (more) load<4>(at.a0 += 64, at.a_stride);
        between(3);
        if constexpr (rows > 1) add_product<2, 5, 6>();
        between(4);
        if constexpr (more) load<6>(at.b0 += at.b_step, at.b_stride);
        between(5);
        if constexpr (rows > 1 && columns > 1) add_product<3, 5, 7>();
        between(6);
        if constexpr (more && columns > 1) load<7>(at.b1 += at.b_step, at.b_stride);
        between(7);
        at.a1 += 64;
    }
    // Fills the time between tile instructions if there is no other work.
    [[gnu::always_inline]] static void pause() { asm volatile("nop; nop; nop; nop; nop; nop"); }
};

class Bf16TilesInSoftware {
  public:
    static void set_rows(int n_rows) { rows_ = n_rows; }
    static void release() { rows_ = 0; }

    template <int n> static void add(const TileProducts &p) {
        for (int64_t step = 0; step < p.n_steps; ++step) {
            for (int row = 0; row < rows_; ++row) {
                const uint8_t *a = static_cast<const uint8_t *>(p.a) + row * p.a_stride + step * 64;
                float *c = reinterpret_cast<float *>(reinterpret_cast<uint8_t *>(p.c) + row * p.c_stride);
                for (int i = 0; i < n; ++i)
                    add_row(a, static_cast<const uint8_t *>(p.b) + step * p.b_step + i * p.b_tile, p.b_stride,
                            c + i * 16);
            }
        }
    }

  private:
    static __m512 flushed(__m512 x) {
        const __m512 sign = _mm512_and_ps(x, _mm512_set1_ps(-0.0F));
        const __mmask16 subnormal = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(0x1p-126F), _CMP_LT_OQ);
        return _mm512_mask_mov_ps(x, subnormal, sign);
    }
    // Splits every pair into its two numbers.
    static __m512 first(__m512i pairs) { return flushed(_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))); }
    static __m512 second(__m512i pairs) {
        return flushed(_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000)))));
    }
    // Adds [32] x [16 pairs][16][2] to c [16].
    static void add_row(const uint8_t *a, const uint8_t *b, int64_t b_stride, float *c) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        for (int pair = 0; pair < 16; ++pair) {
            int32_t two;
            std::memcpy(&two, a + 4 * pair, sizeof two);
            const __m512i both = _mm512_set1_epi32(two), column = _mm512_loadu_si512(b + pair * b_stride);
            even = flushed(_mm512_fmadd_ps(first(both), first(column), even));
            odd = flushed(_mm512_fmadd_ps(second(both), second(column), odd));
        }
        const __m512 before = flushed(_mm512_loadu_ps(c));
        _mm512_storeu_ps(c, flushed(_mm512_add_ps(before, flushed(_mm512_add_ps(even, odd)))));
    }
    static inline thread_local int rows_ = 0;
};

} // namespace
} // namespace quire
