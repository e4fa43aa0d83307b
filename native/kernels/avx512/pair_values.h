// The common part of weighted sums over a BF16 cache that multiply two tokens at a time.
//
// Each instruction set's file includes this once, after attention_tile.h; nothing here has external linkage.
#pragma once

#include "kernels/attention/attention_tile.h"
#include "kernels/avx512/bf16_pairs.h"
#include "kernels/avx512/transposed.h"

namespace quire {
namespace {

struct PairValues {
    using Bf16 = Lanes::Bf16;
    static constexpr bool arranges = true;
    static constexpr int strip = 2 * Lanes::width; // dimensions in one register

    static int64_t block_elements(int dim) { return static_cast<int64_t>(dim) * block_tokens; }

    struct Piece {
        const Bf16 *const *blocks;
        int dim;
        int begin, end;
        const char *next;
        bool ahead;
        const Bf16 *arranged = nullptr; // the same values after arrange(); null if that did not pay off
        bool is_arranged_alone = false; // arrange_keys() made them, so they exist in this order only
    };

    // Arrange block `b` of a step if values are the first `dim` dimensions of the keys.  Two tokens of a dimension are
    // adjacent in the keys and are moved as one number.
    static void arrange_keys(const Bf16 *keys, int dim, int b, Bf16 *to) {
        for (int64_t d = 0; d < dim; d += Lanes::width) {
            __m512i rows[Lanes::width];
#pragma GCC unroll 16
            for (int i = 0; i < Lanes::width; ++i)
                rows[i] = d + i < dim ? _mm512_loadu_si512(keys + (d + i) * block_tokens) : _mm512_setzero_si512();
            transpose_16(rows);
            Bf16 *at = to + d / strip * strip * step_tokens + b * block_tokens * strip + d % strip * 2;
#pragma GCC unroll 16
            for (int pair = 0; pair < Lanes::width; ++pair) _mm512_storeu_si512(at + pair * 2 * strip, rows[pair]);
        }
    }

    // Arrange the tokens [tokens.begin, tokens.end) of a step in pairs, for many queries:
    // [dim / 32][64 pairs][32 dimensions][2].  load(from, mask, token) reads some dimensions of a token.
    template <class Load>
    [[gnu::always_inline]] static void arrange_pairs(const Piece &piece, Range tokens, Bf16 *to, Load load) {
        const int64_t dim = piece.dim;
        const int last = (piece.end - 1) / block_tokens;
        for (int t = tokens.begin; t < tokens.end; t += 2) {
            const int b = t / block_tokens;
            const Bf16 *values = piece.blocks[b] + t % block_tokens * dim;
            const char *next = b < last ? reinterpret_cast<const char *>(piece.blocks[b + 1]) : piece.next;
            next += t % block_tokens * dim * 2;
            for (int64_t d = 0; d < dim; d += strip) {
                prefetch_line(next + d * 2);
                prefetch_line(next + (d + dim) * 2);
                const __mmask32 mask = first_of_32(static_cast<int>(dim - d));
                __m512i pairs[2];
                pair_up(load(values + d, mask, t), load(values + dim + d, mask, t + 1), pairs);
                Bf16 *at = to + d * step_tokens + t * strip;
                _mm512_storeu_si512(at, pairs[0]);
                _mm512_storeu_si512(at + strip, pairs[1]);
            }
        }
    }
};

} // namespace
} // namespace quire
