// Dequantizes weights into panels of BF16: see bf16_panels.h.
#pragma once

#include "kernels/avx512/code_lanes.h"

#include "kernels/avx512amx/bf16_panels.h"
#include "kernels/matmul/packed_tile.h"

namespace quire {
namespace {

constexpr int64_t made_ahead_bytes = 2048;

struct UnsignedCodeLanes : CodeLanes {
    static constexpr bool signed_codes = false;
};

// Rounds every value to the nearest BF16, ties away from zero.
template <WeightFormat format> struct DequantizedWeights {
    using From = Packed<UnsignedCodeLanes, format>;
    static constexpr bool are_made = true;
    const uint8_t *first;
    int64_t n_in, tile_bytes, n_tiles;

    int64_t columns_at_once(int, int64_t column) const {
        return n_in - column < panel_columns ? n_in - column : panel_columns;
    }
    static TilePlace place(int tile, int64_t, int64_t, const uint8_t *panel) { return place_in_panel(panel, tile); }

    void prepare(int64_t column, int64_t n, uint8_t *panel) const {
        const int64_t n_steps = (n + pair_columns - 1) / pair_columns;
        for (int64_t t = 0; t < n_tiles; ++t, panel += panel_tile_bytes) {
            uint8_t *to = panel;
            for (int64_t group = column / group_columns; group < column / group_columns + n_steps; ++group) {
                make_tile(t, group, to);
                to += tile_bytes_bf16;
            }
        }
    }

    // Prefetches this far ahead: while products run, the processor hardly looks ahead by itself.
    [[gnu::always_inline]] void ask_ahead(int64_t tile, int64_t group) const {
        constexpr int64_t group_bytes = From::chunk_bytes / From::chunk_groups;
        const uint8_t *at = first + tile * tile_bytes + group * group_bytes + made_ahead_bytes;
        prefetch<CacheLevel::first>(at, group_bytes);
    }

    [[gnu::always_inline]] void make_tile(int64_t tile, int64_t group, uint8_t *to) const {
        const From chunk{first + tile * tile_bytes + group / From::chunk_groups * From::chunk_bytes};
        fill_group(chunk, static_cast<int>(group % From::chunk_groups), to);
    }

  private:
    static constexpr int halves = group_columns / From::scale_columns; // scales per group
    static constexpr float too_much = 256.0F + From::zero_point;
    // A scale that is a power of two may be so large that 256 times it overflows.
    static constexpr bool any_size = From::layout.scales == ScaleForm::powers;

    // Makes the 32 columns of a group, 4 at a time.
    [[gnu::always_inline]] static void fill_group(const From &chunk, int g, uint8_t *to) {
#pragma GCC unroll 2
        for (int half = 0; half < halves; ++half) {
            const __m512 scale = chunk.scale(g * halves + half, 0);
            // Codes come as 256 + code.  This subtracts 256 and the zero point; the product is exact.
            __m512 offset = _mm512_mul_ps(scale, _mm512_set1_ps(-too_much));
            if constexpr (From::has_minima) offset = _mm512_add_ps(offset, chunk.minimum(g * halves + half, 0));
            constexpr int n = group_steps / halves;
#pragma GCC unroll 8
            for (int step = half * n; step < (half + 1) * n; ++step) {
                const __m512i codes = chunk.codes(g, step, 0);
                const __m512i first = _mm512_slli_epi32(codes, 15), second = _mm512_slli_epi32(codes, 7);
                const __m512i third = _mm512_srli_epi32(codes, 1), fourth = _mm512_srli_epi32(codes, 9);
                store_pair(value(first, scale, offset), value(second, scale, offset), to + step * 128);
                store_pair(value(third, scale, offset), value(fourth, scale, offset), to + step * 128 + 64);
            }
        }
    }

    // Puts a code into bits 15 to 22, the significand of 256 + code.
    [[gnu::always_inline]] static __m512 value(__m512i code, __m512 scale, __m512 offset) {
        constexpr int and_or = 0xEA; // (a & b) | c
        const __m512i bits =
            _mm512_ternarylogic_epi32(code, _mm512_set1_epi32(0xFF << 15), _mm512_set1_epi32(0x43800000), and_or);
        const __m512 value = _mm512_castsi512_ps(bits);
        if constexpr (any_size) return _mm512_mul_ps(_mm512_sub_ps(value, _mm512_set1_ps(too_much)), scale);
        return _mm512_fmadd_ps(value, scale, offset);
    }

    [[gnu::always_inline]] static void store_pair(__m512 even, __m512 odd, uint8_t *to) {
        const __m512i half = _mm512_set1_epi32(0x8000);
        const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
        const __m512i high = _mm512_add_epi32(_mm512_castps_si512(odd), half);
        constexpr int high_or_low = 0xCA; // a ? b : c
        _mm512_store_si512(
            to, _mm512_ternarylogic_epi32(_mm512_set1_epi32(static_cast<int>(0xFFFF0000)), high, low, high_or_low));
    }
};

template <class Blocks> void multiply_dequantized(const MatmulPart &part) {
    with_format(part.weights->format, [&]<WeightFormat format>() {
        const int64_t tile_bytes = part.weights->tile_bytes();
        const DequantizedWeights<format> weights{part.weights->data + part.first_tile * tile_bytes, part.weights->n_in,
                                                 tile_bytes, part.n_tiles};
        PanelProduct<Blocks, DequantizedWeights<format>>(part, weights, 1).run();
    });
}

} // namespace
} // namespace quire
