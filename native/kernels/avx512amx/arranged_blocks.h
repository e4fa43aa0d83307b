// Arranges blocks of a BF16 cache for products of tiles, and prefetches memory meanwhile.
#pragma once

#include "kernels/attention/attention_tile.h"
#include "kernels/avx512/bf16_pairs.h"
#include "kernels/avx512/column_pairs.h"
#include "kernels/cache_lines.h"

namespace quire {
namespace {

// Of a step through the keys.
constexpr int long_step_blocks = 8, long_step = long_step_blocks * block_tokens;

// Memory to prefetch while there is other work.  Blocks lie anywhere, so the hardware does not foresee them; it has few
// buffers for lines under way, so they are prefetched little by little.
class Ahead {
  public:
    void clear() { n_pieces_ = next_ = n_lines_ = 0; }
    void add(const uint16_t *piece, int64_t n) {
        pieces_[n_pieces_++] = {reinterpret_cast<const char *>(piece), n * 2};
        n_lines_ += static_cast<int>((n * 2 + 63) / 64);
    }
    int lines() const { return n_lines_; }
    [[gnu::always_inline]] void ask(int n) {
        for (; n > 0 && next_ < n_pieces_; --n) {
            Piece &piece = pieces_[next_];
            prefetch_line(piece.at);
            piece.at += 64;
            piece.left -= 64;
            if (piece.left <= 0) ++next_;
        }
    }

  private:
    struct Piece {
        const char *at;
        int64_t left;
    };
    Piece pieces_[2 * long_step_blocks];
    int n_pieces_ = 0, next_ = 0, n_lines_ = 0;
};

// A block's keys to [dim / 2][32 tokens][2], with zeros up to whole tiles.  `ask` is called for every two dimensions.
template <class Ask>
[[gnu::always_inline]] inline void arrange_keys(const uint16_t *from, int head_dim, int64_t dim, uint16_t *to,
                                                const Ask &ask) {
    const __m512i zero = _mm512_setzero_si512();
    for (int64_t d = 0; d < dim; d += 2, from += 2 * block_tokens, to += 2 * block_tokens) {
        ask();
        __m512i pairs[2];
        interleave(d < head_dim ? _mm512_loadu_si512(from) : zero,
                   d + 1 < head_dim ? _mm512_loadu_si512(from + block_tokens) : zero, pairs);
        _mm512_storeu_si512(to, pairs[0]);
        _mm512_storeu_si512(to + block_tokens, pairs[1]);
    }
}

// Values from dimension d on, of `tokens` of a block, to [pairs of tokens][16 n dimensions][2], where interleave() leaves
// these tokens' weights; zeros for its other tokens.  If `asked`, marks in `strange` which are not finite.  Calls `ask`
// for every two tokens.
template <int n, class Ask>
[[gnu::always_inline]] inline void arrange_values(const uint16_t *from, int64_t dim, int64_t d, Range tokens,
                                                  uint16_t *to, bool asked, __mmask32 &strange, const Ask &ask) {
    constexpr int64_t pair = n * 32;
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    const __mmask32 masks[] = {first_of_32(static_cast<int>(dim - d)), first_of_32(static_cast<int>(dim - d - 32))};
    from += d;
    for (int t = 0; t < block_tokens; t += 2, from += 2 * dim) {
        uint16_t *at = to + (t / 8 * 2 + t % 4 / 2 + t % 8 / 4 * 8) * pair;
        ask();
        for (int half = 0; half < n / 2; ++half) {
            const __mmask32 mask = masks[half];
            const __m512i even =
                _mm512_maskz_loadu_epi16(t >= tokens.begin && t < tokens.end ? mask : 0, from + half * 32);
            const __m512i odd = _mm512_maskz_loadu_epi16(t + 1 >= tokens.begin && t + 1 < tokens.end ? mask : 0,
                                                         from + dim + half * 32);
            if (asked) {
                strange |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(even, exponent), exponent);
                strange |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(odd, exponent), exponent);
            }
            __m512i pairs[2];
            interleave(even, odd, pairs);
            _mm512_storeu_si512(at + half * 64, pairs[0]);
            _mm512_storeu_si512(at + half * 64 + 32, pairs[1]);
        }
    }
}

} // namespace
} // namespace quire
