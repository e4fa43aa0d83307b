// The two products of attention, as templates over the vector type of an instruction set: scores of some queries with
// the tokens of a block, and sums of values by weights.
//
// Fixed order: a score adds one dimension after the other, a sum of values one token after the other, each by fma().
// How many queries, tokens or dimensions go together changes neither, and widening to float is exact.
//
// Included once by each instruction set's file, after its Lanes; nothing here has external linkage.
#pragma once

#include "kernels/attention_kernels.h"

namespace quire {
namespace {

constexpr int block_tokens = kv_block_tokens;
constexpr int step_tokens = kv_step_tokens;

// K of a block and kv head: [head_dim][32 tokens] of T.
template <class L, class T> class Keys {
    using Vec = typename L::Vec;
    static constexpr int width = L::width;

  public:
    static constexpr int most_queries = L::registers / 4; // of one call to score

    // Scores of n queries [n, q_stride] with all tokens of a block, to out [n, step_tokens].  Where `ahead`, asks for
    // the block at `next` meanwhile: blocks lie anywhere, so the hardware does not foresee it.
    template <int n>
    static void score(const float *q, int q_stride, int head_dim, const T *keys, float *out, const char *next,
                      bool ahead) {
        constexpr int half = L::registers / 2 / n;
        constexpr int m = half * width < block_tokens ? half : block_tokens / width;
        for (int t = 0; t < block_tokens; t += m * width) {
            Vec sum[n][m];
#pragma GCC unroll 8
            for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) sum[i][j] = L::set(0.0F);
            }
            const T *at = keys + t;
            for (int d = 0; d < head_dim; ++d, at += block_tokens) {
                if (ahead && t == 0) __builtin_prefetch(next + static_cast<int64_t>(d) * block_tokens * sizeof(T));
                Vec key[m];
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) key[j] = L::load(at + j * width);
#pragma GCC unroll 8
                for (int i = 0; i < n; ++i) {
                    const Vec x = L::set(q[i * q_stride + d]);
#pragma GCC unroll 8
                    for (int j = 0; j < m; ++j) sum[i][j] = L::fma(x, key[j], sum[i][j]);
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) L::store(out + i * step_tokens + t + j * width, sum[i][j]);
            }
        }
    }
};

// V of a block and kv head: [32 tokens][v_head_dim] of T.
template <class L, class T> class Values {
    using Vec = typename L::Vec;
    static constexpr int width = L::width;

  public:
    static constexpr int most_queries = L::registers / 4;
    template <int n> static constexpr int n_vectors = L::registers / 2 / n < 8 ? L::registers / 2 / n : 8;

    struct Piece {
        const T *const *blocks; // of a step, each at its first token
        int dim; // v_head_dim
        int begin, end; // tokens of the step
        const char *next; // where the memory after these blocks begins
        bool ahead;
    };

    // sums [n, sum_stride] = sums * rescale + weights [n, step_tokens] * values, for m * width dimensions from d on.
    template <int n, int m>
    static void add(const Piece &piece, const float *weights, const float *rescale, float *sums, int sum_stride,
                    int d) {
        Vec sum[n][m];
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < m; ++j)
                sum[i][j] = L::mul(L::load(sums + i * sum_stride + d + j * width), L::set(rescale[i]));
        }
        const int64_t dim = piece.dim;
        const int last = (piece.end - 1) / block_tokens;
        for (int t = piece.begin; t < piece.end;) {
            const int b = t / block_tokens, offset = t % block_tokens;
            const int stop = piece.end < (b + 1) * block_tokens ? piece.end : (b + 1) * block_tokens;
            const T *values = piece.blocks[b] + offset * dim + d;
            const char *next = b < last ? reinterpret_cast<const char *>(piece.blocks[b + 1]) : piece.next;
            next += (offset * dim + d) * static_cast<int64_t>(sizeof(T));
            for (; t < stop; ++t, values += dim, next += dim * static_cast<int64_t>(sizeof(T))) {
                if (piece.ahead) {
                    for (int line = 0; line < static_cast<int>(m * width * sizeof(T)); line += 64)
                        __builtin_prefetch(next + line);
                }
                Vec value[m];
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) value[j] = L::load(values + j * width);
#pragma GCC unroll 8
                for (int i = 0; i < n; ++i) {
                    const Vec weight = L::set(weights[i * step_tokens + t]);
#pragma GCC unroll 8
                    for (int j = 0; j < m; ++j) sum[i][j] = L::fma(weight, value[j], sum[i][j]);
                }
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < m; ++j) L::store(sums + i * sum_stride + d + j * width, sum[i][j]);
        }
    }

    // The same for the last dimensions, fewer than `width`.
    template <int n>
    static void add_last(const Piece &piece, const float *weights, const float *rescale, float *sums, int sum_stride,
                         int d) {
        Vec sum[n];
        for (int i = 0; i < n; ++i) sum[i] = L::mul(L::load(sums + i * sum_stride + d), L::set(rescale[i]));
        for (int t = piece.begin; t < piece.end; ++t) {
            const T *values = piece.blocks[t / block_tokens] + static_cast<int64_t>(t % block_tokens) * piece.dim + d;
            const Vec value = L::load_part(values, piece.dim - d);
            for (int i = 0; i < n; ++i) sum[i] = L::fma(L::set(weights[i * step_tokens + t]), value, sum[i]);
        }
        for (int i = 0; i < n; ++i) L::store(sums + i * sum_stride + d, sum[i]);
    }
};

} // namespace
} // namespace quire
