// Arranges blocks of a BF16 cache for products of tiles, and prefetches memory meanwhile.
#pragma once

#include "kernels/attention/attention_tile.h"
#include "kernels/avx512/bf16_pairs.h"
#include "kernels/avx512/column_pairs.h"
#include "kernels/avx512/transposed.h"
#include "kernels/cache_lines.h"

namespace quire {
namespace {

// Sizes for one step through the keys.
constexpr int long_step_blocks = 8, long_step = long_step_blocks * block_tokens;

// A list of memory to prefetch during other work.  Blocks are scattered, so the hardware does not prefetch them.  Line
// fill buffers are few, so the list is prefetched a few lines at a time.
class PrefetchList {
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

// Arranges a block's keys as [dim / 2][32 tokens][2], padded with zeros to whole tiles.  Calls `ask` for every two
// dimensions.
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

// Arranges values from dimension d on, of `tokens` of a block, as [pairs of tokens][16 n dimensions][2], in the order
// in which interleave() leaves these tokens' weights.  The block's other tokens become zeros.  If `asked`, marks in
// `strange` the values that are not finite.  Calls `ask` for every two tokens.
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

// Arranges values of a latent cache, which are the first `dim` dimensions of the keys, [dimension][32 tokens].  Two
// tokens of a dimension are adjacent there and are moved as one number.
template <int n, class Ask>
[[gnu::always_inline]] inline void arrange_values_of_keys(const uint16_t *keys, int64_t dim, int64_t d, Range tokens,
                                                          uint16_t *to, bool asked, __mmask32 &strange,
                                                          const Ask &ask) {
    constexpr int64_t pair = n * 32;
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    const __mmask32 seen = first_of_32(tokens.end) & ~first_of_32(tokens.begin);
    for (int part = 0; part < n; ++part) { // 16 dimensions, as interleave() leaves them
        __m512i rows[16];
#pragma GCC unroll 16
        for (int j = 0; j < 16; ++j) {
            const int64_t at = d + part / 2 * 32 + part % 2 * 4 + j / 4 * 8 + j % 4;
            rows[j] = at < dim ? _mm512_maskz_loadu_epi16(seen, keys + at * block_tokens) : _mm512_setzero_si512();
            if (asked) strange |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(rows[j], exponent), exponent);
        }
        transpose_16(rows);
#pragma GCC unroll 16
        for (int p = 0; p < 16; ++p) {
            _mm512_storeu_si512(to + (p / 4 * 2 + p % 2 + p % 4 / 2 * 8) * pair + part * 32, rows[p]);
            if (p % n == 0) ask();
        }
    }
}

} // namespace
} // namespace quire
