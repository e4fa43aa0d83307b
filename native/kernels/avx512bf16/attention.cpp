// Attention with a BF16 cache by VDPBF16PS.  Queries and weights are rounded to BF16, too.  Two dimensions (for scores)
// or two tokens (for sums of values) are multiplied at a time, in the same order for one query and for many.  The
// instruction treats subnormal numbers as zero.
#include "kernels/avx512/pair_values.h"
#include "kernels/avx512/pair_weights.h"

namespace quire {
namespace {

struct PairLanes : Lanes {};

using Bf16 = PairLanes::Bf16;
using Vec = PairLanes::Vec;

constexpr int width = PairLanes::width;
constexpr int n_vectors = block_tokens / width;
static_assert(n_vectors == 2, "a row of a block of K fills one register");

// Interleave two rows of up to 32 numbers: lane j of the two result registers has number j of both.
[[gnu::always_inline]] inline void load_pairs(__m512i even, __m512i odd, __m512bh *pairs) {
    __m512i both[2];
    pair_up(even, odd, both);
    pairs[0] = reinterpret_cast<__m512bh>(both[0]);
    pairs[1] = reinterpret_cast<__m512bh>(both[1]);
}

// Broadcast a pair of one query to every lane.
[[gnu::always_inline]] inline __m512bh set_pair(const uint16_t *at) {
    int32_t pair;
    __builtin_memcpy(&pair, at, sizeof pair);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
}

inline __m256i to_nearest(Vec x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }

template <> class Keys<PairLanes, Bf16> {
  public:
    static constexpr int most_queries = 8;

    static int64_t block_elements(int dim) { return static_cast<int64_t>(dim) * block_tokens; }

    // Pad to whole registers with zeros.
    static void prepare(const Queries &queries, int i, const float *q, float factor) {
        auto *row = reinterpret_cast<uint16_t *>(queries.rows + i * queries.stride);
        for (int d = 0; d < queries.dim; d += width) {
            const int left = queries.dim - d;
            const Vec x = left >= width ? Lanes::load(q + d) : Lanes::load_part(q + d, left);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(row + d), to_nearest(Lanes::mul(x, Lanes::set(factor))));
        }
    }

    template <int n>
    [[gnu::noinline]] static void score(const Queries &queries, int first, const KeyBlock<Bf16> &block, float *out) {
        const auto *q = reinterpret_cast<const uint16_t *>(queries.rows + first * queries.stride);
        const int q_stride = queries.stride * 2, head_dim = queries.dim;
        Vec sum[n][n_vectors];
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) sum[i][0] = sum[i][1] = Lanes::set(0.0F);
        const Bf16 *at = block.keys;
        auto add_pair = [&](int d, __m512i odd) __attribute__((always_inline)) {
            __m512bh key[n_vectors];
            load_pairs(_mm512_loadu_si512(at), odd, key);
#pragma GCC unroll 16
            for (int i = 0; i < n; ++i) {
                const __m512bh x = set_pair(q + i * q_stride + d);
                sum[i][0] = _mm512_dpbf16_ps(sum[i][0], key[0], x);
                sum[i][1] = _mm512_dpbf16_ps(sum[i][1], key[1], x);
            }
        };
        int d = 0;
        if (block.ahead) {
            const char *next = block.next;
            for (; d + 1 < head_dim; d += 2, at += 2 * block_tokens, next += 4 * block_tokens) {
                prefetch_line(next);
                prefetch_line(next + 2 * block_tokens);
                add_pair(d, _mm512_loadu_si512(at + block_tokens));
            }
        } else {
            for (; d + 1 < head_dim; d += 2, at += 2 * block_tokens) add_pair(d, _mm512_loadu_si512(at + block_tokens));
        }
        if (d < head_dim) add_pair(d, _mm512_setzero_si512()); // an odd last dimension is paired with zero
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) {
            Lanes::store(out + i * step_tokens, sum[i][0]);
            Lanes::store(out + i * step_tokens + width, sum[i][1]);
        }
    }
};

template <> class Values<PairLanes, Bf16> : public PairValues {
  public:
    static constexpr int most_queries = 8;
    static constexpr int together = 2;

    static constexpr int weighed_together = block_tokens;
    [[gnu::always_inline]] static float weigh(const Bf16 *const *, int, float *scores, int begin, int end,
                                              float largest) {
        return weigh_scores<Values>(scores, begin, end, largest);
    }
    static __m512i to_bf16(Vec low, Vec high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }

    static void arrange(const Piece &piece, Bf16 *to) {
        arrange_pairs(piece, {piece.begin / 2 * 2, piece.end}, to,
                      [](const Bf16 *from, __mmask32 mask, int) { return _mm512_maskz_loadu_epi16(mask, from); });
    }

    template <int n>
    static void add(const Piece &piece, const float *weights, const float *rescale, float *sums, int sum_stride) {
        const Sums where{weights, rescale, sums, sum_stride};
        int d = 0;
        if constexpr (n < most_queries) {
            constexpr int m = n <= 2 ? 4 : 2;
            for (; d + m * strip <= piece.dim; d += m * strip) add_strips<n, 2 * m>(piece, where, d);
        }
        for (; d + width < piece.dim; d += strip) add_strips<n, 2>(piece, where, d);
        if (d < piece.dim) add_strips<n, 1>(piece, where, d);
    }

  private:
    struct Sums {
        const float *weights, *rescale;
        float *sums;
        int stride;
    };

    // sums = sums * rescale + weights * values for m * width dimensions from d on.
    template <int n, int m> [[gnu::noinline]] static void add_strips(const Piece &piece, const Sums &where, int d) {
        Vec sum[n][m];
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < m; ++j) {
                const Vec before = Lanes::load(where.sums + i * where.stride + d + j * width);
                sum[i][j] = Lanes::mul(before, Lanes::set(where.rescale[i]));
            }
        }
        auto add_pairs = [&](int t, const __m512bh *pairs) __attribute__((always_inline)) {
#pragma GCC unroll 16
            for (int i = 0; i < n; ++i) {
                const __m512bh weight =
                    set_pair(reinterpret_cast<const uint16_t *>(where.weights + i * step_tokens) + t);
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) sum[i][j] = _mm512_dpbf16_ps(sum[i][j], pairs[j], weight);
            }
        };
        // Arranged pairs cannot be used if only one token of a pair is visible.
        const bool is_whole = piece.begin % 2 == 0 && piece.end % 2 == 0;
        if (n == most_queries && piece.arranged != nullptr && is_whole) {
            const Bf16 *at = piece.arranged + d * step_tokens + piece.begin * strip;
            for (int t = piece.begin; t < piece.end; t += 2, at += 2 * strip) {
                const __m512bh pairs[] = {reinterpret_cast<__m512bh>(_mm512_loadu_si512(at)),
                                          reinterpret_cast<__m512bh>(_mm512_loadu_si512(at + strip))};
                add_pairs(t, pairs);
            }
        } else if (piece.is_arranged_alone) {
            for (int t = piece.begin / 2 * 2; t < piece.end; t += 2) {
                const __mmask32 seen = (t < piece.begin ? 0U : 0x55555555U) | (t + 1 < piece.end ? 0xaaaaaaaaU : 0U);
                __m512bh pairs[m];
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) {
                    const Bf16 *at = piece.arranged + (d + j / 2 * strip) * step_tokens + t * strip + j % 2 * strip;
                    pairs[j] = reinterpret_cast<__m512bh>(_mm512_maskz_loadu_epi16(seen, at));
                }
                add_pairs(t, pairs);
            }
        } else {
            each_pair<(m + 1) / 2>(piece, d, add_pairs);
        }
#pragma GCC unroll 16
        for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < m; ++j) Lanes::store(where.sums + i * where.stride + d + j * width, sum[i][j]);
        }
    }

    // Visit the pairs of tokens of a piece, m strips of each.
    template <int m, class Visit> [[gnu::always_inline]] static void each_pair(const Piece &piece, int d, Visit visit) {
        const int64_t dim = piece.dim;
        const __mmask32 mask = first_of_32(piece.dim - d - (m - 1) * strip);
        const int last = (piece.end - 1) / block_tokens;
        for (int t = piece.begin / 2 * 2; t < piece.end;) {
            const int b = t / block_tokens;
            const int stop = piece.end < (b + 1) * block_tokens ? piece.end : (b + 1) * block_tokens;
            const int64_t offset = t % block_tokens * dim + d;
            const Bf16 *values = piece.blocks[b] + offset;
            const char *next =
                (b < last ? reinterpret_cast<const char *>(piece.blocks[b + 1]) : piece.next) + offset * 2;
            for (; t < stop; t += 2, values += 2 * dim, next += 4 * dim) {
                // Invisible values may be NaN or infinite, and no weight turns these into zero.
                const __mmask32 even = t < piece.begin ? 0 : mask, odd = t + 1 < piece.end ? mask : 0;
                __m512bh pairs[2 * m];
#pragma GCC unroll 4
                for (int j = 0; j < m; ++j) {
                    if (piece.ahead) {
                        prefetch_line(next + j * strip * 2);
                        prefetch_line(next + (dim + j * strip) * 2);
                    }
                    load_pairs(_mm512_maskz_loadu_epi16(even, values + j * strip),
                               _mm512_maskz_loadu_epi16(odd, values + dim + j * strip), pairs + 2 * j);
                }
                visit(t, pairs);
            }
        }
    }
};

void attend(const AttentionTile &tile) { TileAttention<PairLanes, Bf16>(tile).run(); }

void to_bf16(const float *from, uint16_t *to, int n) { avx512::attention_kernels.to_bf16(from, to, n); }

} // namespace

// Values are arranged once per tile; with more queries than this, their states would leave the second-level cache.
constexpr int tile_queries = 128;

const AttentionKernels avx512bf16::attention_kernels = {attend,  merge_tile<Lanes>, nullptr,
                                                        to_bf16, nullptr,           tile_queries};

} // namespace quire
