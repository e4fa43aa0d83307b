// Attention to a BF16 cache by tiles, for one query and for many, so that a query's bits depend on it alone: queries and
// weights are rounded to BF16, and 32 dimensions (of scores) or the 32 tokens of a block (of sums of values) are
// multiplied at a time.
#include "kernels/avx512/pair_values.h"
#include "kernels/avx512amx/bf16_tiles.h"

namespace quire {
namespace {

template <class Tiles> struct TileLanes : Lanes {};

using Bf16 = Lanes::Bf16;
using Vec = Lanes::Vec;

constexpr int width = Lanes::width;
static_assert(block_tokens == pair_columns && block_tokens == 2 * width);

// Two numbers each of 32 tokens or dimensions, in two tiles side by side.
constexpr int64_t pair_bytes = 128, tile_bytes = 64, step_bytes = 16 * pair_bytes;

template <class Tiles> class Keys<TileLanes<Tiles>, Bf16> {
  public:
    static constexpr int most_queries = 16;

    static int64_t block_elements(int dim) { return static_cast<int64_t>(dim) * block_tokens; }

    // Up to whole tiles, with zeros.
    static void prepare(const Queries &queries, int i, const float *q, float factor) {
        auto *row = reinterpret_cast<uint16_t *>(queries.rows + i * queries.stride);
        for (int d = 0; d < whole_strips(queries.dim); d += width) {
            const int left = queries.dim - d;
            const Vec x = left >= width ? Lanes::load(q + d)
                          : left > 0    ? Lanes::load_part(q + d, left)
                                        : Lanes::set(0.0F);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(row + d), to_bf16_lanes(Lanes::mul(x, Lanes::set(factor))));
        }
    }

    // The first queries of a block find its keys arranged for the others.
    template <int n>
    [[gnu::noinline]] static void score(const Queries &queries, int first, const KeyBlock<Bf16> &block, float *out) {
        if (block.ahead) arrange(block, queries.dim, static_cast<Bf16 *>(queries.arranged));
        for (int i = 0; i < n; ++i) {
            for (int t = 0; t < block_tokens; t += width) Lanes::store(out + i * step_tokens + t, Lanes::set(0.0F));
        }
        Tiles::set_rows(n);
        Tiles::template add<2>({queries.rows + first * queries.stride, queries.stride * int64_t{sizeof(float)},
                                queries.arranged, pair_bytes, tile_bytes, step_bytes,
                                whole_strips(queries.dim) / pair_columns, out, step_tokens * int64_t{sizeof(float)}});
    }

  private:
    // [dim / 2][32 tokens][2], with zeros up to whole tiles.
    static void arrange(const KeyBlock<Bf16> &block, int dim, Bf16 *to) {
        const __m512i zero = _mm512_setzero_si512();
        const Bf16 *at = block.keys;
        const char *next = block.next;
        for (int d = 0; d < whole_strips(dim); d += 2, at += 2 * block_tokens, to += 2 * block_tokens) {
            if (d < dim) {
                __builtin_prefetch(next + d * 2 * block_tokens);
                __builtin_prefetch(next + (d + 1) * 2 * block_tokens);
            }
            __m512i pairs[2];
            pair_up(d < dim ? _mm512_loadu_si512(at) : zero, d + 1 < dim ? _mm512_loadu_si512(at + block_tokens) : zero,
                    pairs);
            _mm512_storeu_si512(to, pairs[0]);
            _mm512_storeu_si512(to + block_tokens, pairs[1]);
        }
    }
};

template <class Tiles> class Values<TileLanes<Tiles>, Bf16> : public PairValues {
  public:
    static constexpr int most_queries = 16;
    static constexpr int together = block_tokens;
    static constexpr bool whole_blocks = true;
    static constexpr int least_arranged = 1;

    static Vec keep(const Bf16 *const *, int, Vec weight, float *scores, int t) {
        return keep_rounded(to_bf16_lanes(weight), scores, t);
    }

    // No weights but those of tokens [from, to).
    static void clear(float *scores, int from, int to) {
        auto *weights = reinterpret_cast<uint16_t *>(scores);
        for (int t = 0; t < step_tokens; t += width) {
            if (t < from || t >= to)
                _mm256_storeu_si256(reinterpret_cast<__m256i *>(weights + t), _mm256_setzero_si256());
        }
    }

    // The blocks that [begin, end) of a step touches, zeros for their other tokens.  Whether all of it is finite.
    static bool arrange(const Piece &piece, Bf16 *to) {
        const __m512i exponent = _mm512_set1_epi16(0x7f80);
        __mmask32 strange = 0;
        const Range blocks{piece.begin / block_tokens * block_tokens,
                           (piece.end + block_tokens - 1) / block_tokens * block_tokens};
        arrange_pairs(piece, blocks, to, [&](const Bf16 *from, __mmask32 mask, int t) {
            const __m512i x = _mm512_maskz_loadu_epi16(t >= piece.begin && t < piece.end ? mask : 0, from);
            strange |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
            return x;
        });
        return strange == 0;
    }

    template <int n>
    [[gnu::noinline]] static void add(const Piece &piece, const float *weights, const float *rescale, float *sums,
                                      int sum_stride) {
        const Bf16 *values = piece.arranged;
        if (values == nullptr) {
            arrange(piece, piece.own);
            values = piece.own;
        }
        for (int i = 0; i < n; ++i) {
            if (rescale[i] == 1.0F) continue;
            float *row = sums + i * sum_stride;
            for (int d = 0; d < sum_stride; d += width)
                Lanes::store(row + d, Lanes::mul(Lanes::load(row + d), Lanes::set(rescale[i])));
        }
        Tiles::set_rows(n);
        const int first = piece.begin / block_tokens, end = (piece.end + block_tokens - 1) / block_tokens;
        TileProducts products{reinterpret_cast<const uint16_t *>(weights) + first * block_tokens,
                              step_tokens * int64_t{sizeof(float)},
                              nullptr,
                              pair_bytes,
                              tile_bytes,
                              step_bytes,
                              end - first,
                              nullptr,
                              sum_stride * int64_t{sizeof(float)}};
        for (int d = 0; d < piece.dim; d += strip) {
            products.b = values + d * step_tokens + first * block_tokens * strip;
            products.c = sums + d;
            piece.dim - d > width ? Tiles::template add<2>(products) : Tiles::template add<1>(products);
        }
    }
};

template <class Tiles> void attend(const AttentionTile &tile) {
    TileAttention<TileLanes<Tiles>, Bf16>(tile).run();
    Tiles::release();
}

void to_bf16(const float *from, uint16_t *to, int n) { avx512::attention_kernels.to_bf16(from, to, n); }

} // namespace

const AttentionKernels avx512amx::attention_kernels = {attend<Bf16TileRegisters>, merge_tile<Lanes>, nullptr, to_bf16,
                                                       nullptr};
const AttentionKernels avx512amx::emulated_attention_kernels = {attend<Bf16TilesInSoftware>, merge_tile<Lanes>, nullptr,
                                                                to_bf16, nullptr};

} // namespace quire
