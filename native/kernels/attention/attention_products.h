// The two products of attention, as templates over the vector type of an instruction set: the scores of queries with
// the tokens of a block, and weighted sums of values.
//
// The order is fixed: a score adds its dimensions one by one, a sum of values its tokens one by one, each with fma().
// The number of queries, tokens or dimensions computed together changes neither, and widening to float is exact.
//
// Each instruction set's file includes this once, after its Lanes; nothing here has external linkage.
#pragma once

#include <type_traits>

#include "core/q8_layout.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/cache_lines.h"
#include "kernels/vector_math.h"

namespace quire {
namespace {

constexpr int block_tokens = kv_block_tokens;
constexpr int step_tokens = kv_step_tokens;

// The queries of a tile, prepared for scores: floats times the factor or, for an 8-bit cache, codes and scales.
struct Queries {
    float *rows; // [n, stride]
    int stride, dim;
    float *scales;
    int32_t *sums; // sums of codes
    bool has_smallest; // K has 5 bits, so groups have a smallest value
};

// K of a block and head, and the memory to prefetch meanwhile.  Blocks are scattered, so the hardware cannot prefetch
// them.
template <class T> struct KeyBlock {
    const T *keys;
    const char *next;
    bool ahead;
};

// Prefetch the scales of a block's codes.
inline void ask_for_scales(const char *scales) {
    for (int line = 0; line < block_tokens * static_cast<int>(sizeof(float)); line += 64) prefetch_line(scales + line);
}

// Write the codes of x, where x = code * scale, and return the scale.  If the scale is too small to divide by, x counts
// as zero.
template <class L> float to_codes(const float *x, int8_t *codes, int n) {
    constexpr int width = L::width;
    constexpr float smallest = 1e-30F;
    auto load = [&](int i) { return i + width <= n ? L::load(x + i) : L::load_part(x + i, n - i); };
    auto largest = L::set(0.0F), strange = L::set(0.0F);
    for (int i = 0; i < n; i += width) {
        const auto v = load(i);
        largest = L::max(largest, L::max(v, L::sub(L::set(0.0F), v)));
        strange = L::fma(v, L::set(0.0F), strange); // NaN if a value is not finite
    }
    const float found = L::largest(largest), inverse = found > smallest ? 127.0F / found : 0.0F;
    for (int i = 0; i < n; i += width) {
        const auto limited = L::min(L::max(L::mul(load(i), L::set(inverse)), L::set(-127.0F)), L::set(127.0F));
        float rounded[width];
        L::store(rounded, L::round(limited));
        for (int j = 0; j < width && i + j < n; ++j) codes[i + j] = static_cast<int8_t>(rounded[j]);
    }
    return (found > smallest ? found / 127.0F : 0.0F) + L::total(strange);
}

// K of a block and kv head: [head_dim][32 tokens] of T.
template <class L, class T> class Keys {
    using Vec = typename L::Vec;
    static constexpr int width = L::width;

  public:
    static constexpr int most_queries = L::registers / 4; // queries per call of score()

    static int64_t block_elements(int dim) { return static_cast<int64_t>(dim) * block_tokens; }

    static void prepare(const Queries &queries, int i, const float *q, float factor) {
        for (int d = 0; d < queries.dim; ++d) queries.rows[i * queries.stride + d] = q[d] * factor;
    }

    // Write the scores of n queries, from `first` on, with all tokens of a block to out [n, step_tokens].
    template <int n>
    [[gnu::noinline]] static void score(const Queries &queries, int first, const KeyBlock<T> &block, float *out) {
        constexpr int half = L::registers / 2 / n;
        constexpr int m = half * width < block_tokens ? half : block_tokens / width;
        const float *q = queries.rows + first * queries.stride;
        const int q_stride = queries.stride, head_dim = queries.dim;
        for (int t = 0; t < block_tokens; t += m * width) {
            Vec sum[n][m];
#pragma GCC unroll 8
            for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) sum[i][j] = L::set(0.0F);
            }
            const T *at = block.keys + t;
            for (int d = 0; d < head_dim; ++d, at += block_tokens) {
                if (block.ahead && t == 0)
                    prefetch_line(block.next + static_cast<int64_t>(d) * block_tokens * sizeof(T));
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

// K of an 8-bit cache: [head_dim / 4][32 tokens][4] codes, then scales.  Dot products are exact sums of integers, so
// their order does not matter.
template <class L> class Keys<L, int8_t> {
    static constexpr int width = L::width;

  public:
    static constexpr int most_queries = L::registers / 4;

    static int64_t block_elements(int dim) { return static_cast<int64_t>(q8_head_bytes(dim, block_tokens)); }

    static void prepare(const Queries &queries, int i, const float *q, float factor) {
        auto *codes = reinterpret_cast<int8_t *>(queries.rows + i * queries.stride);
        for (int d = queries.dim / q8_group * q8_group; d < queries.stride; ++d) codes[d] = 0;
        queries.scales[i] = to_codes<L>(q, codes, queries.dim) * factor;
        queries.sums[i] = 0;
        for (int d = 0; d < queries.dim; ++d) queries.sums[i] += codes[d];
    }

    template <int n>
    [[gnu::noinline]] static void score(const Queries &queries, int first, const KeyBlock<int8_t> &block, float *out) {
        constexpr int half = L::registers / 2 / n;
        constexpr int m = half * width < block_tokens ? half : block_tokens / width;
        const auto *scales = reinterpret_cast<const float *>(block.keys + q8_codes_bytes(queries.dim, block_tokens));
        const float *q = queries.rows + first * queries.stride;
        const int n_groups = (queries.dim + q8_group - 1) / q8_group;
        for (int t = 0; t < block_tokens; t += m * width) {
            typename L::Ints sum[n][m];
#pragma GCC unroll 8
            for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) sum[i][j] = L::begin_dot(queries.sums[first + i]);
            }
            const int8_t *at = block.keys + t * q8_group;
            if (block.ahead && t == 0) ask_for_scales(block.next + q8_codes_bytes(queries.dim, block_tokens));
            for (int group = 0; group < n_groups; ++group, at += block_tokens * q8_group) {
                if (block.ahead && t == 0) {
                    for (int line = 0; line < block_tokens * q8_group; line += 64)
                        prefetch_line(block.next + group * block_tokens * q8_group + line);
                }
                typename L::Codes key[m];
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) key[j] = L::load_keys(at + j * width * q8_group);
#pragma GCC unroll 8
                for (int i = 0; i < n; ++i) {
                    const typename L::Codes x = L::set_query(q + i * queries.stride + group);
#pragma GCC unroll 8
                    for (int j = 0; j < m; ++j) sum[i][j] = L::add_dot(sum[i][j], key[j], x);
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < n; ++i) {
                const auto scale = L::set(queries.scales[first + i]);
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) {
                    const auto both = L::mul(scale, L::load(scales + t + j * width));
                    L::store(out + i * step_tokens + t + j * width, L::mul(L::to_floats(sum[i][j]), both));
                }
            }
        }
    }
};

// A square matrix in registers of 16 bytes, which every instruction set has.
template <class Unit> struct Square {
    static constexpr int n = 16 / static_cast<int>(sizeof(Unit));
    typedef Unit Row __attribute__((vector_size(16)));
    Row rows[n];

    [[gnu::always_inline]] static Row low(Row a, Row b) {
        if constexpr (n == 8)
            return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        else
            return __builtin_shufflevector(a, b, 0, 4, 1, 5);
    }
    [[gnu::always_inline]] static Row high(Row a, Row b) {
        if constexpr (n == 8)
            return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
        else
            return __builtin_shufflevector(a, b, 2, 6, 3, 7);
    }
    // Each round rotates the bits of (row, column) by one place.
    [[gnu::always_inline]] void transpose() {
#pragma GCC unroll 3
        for (int round = 1; round < n; round *= 2) {
            Row next[n];
#pragma GCC unroll 4
            for (int i = 0; i < n / 2; ++i) {
                next[2 * i] = low(rows[i], rows[i + n / 2]);
                next[2 * i + 1] = high(rows[i], rows[i + n / 2]);
            }
#pragma GCC unroll 8
            for (int i = 0; i < n; ++i) rows[i] = next[i];
        }
    }
};

// Transpose `n` units of 32 tokens, [n][32], to one row per token, `stride` bytes apart.
template <class Unit> inline void transpose_tokens(const void *from, int n, void *to, int64_t stride) {
    constexpr int some = Square<Unit>::n, unit = static_cast<int>(sizeof(Unit));
    const auto *source = static_cast<const char *>(from);
    auto *target = static_cast<char *>(to);
    int d = 0;
    for (; d + some <= n; d += some) {
        for (int t = 0; t < block_tokens; t += some) {
            Square<Unit> square;
#pragma GCC unroll 8
            for (int i = 0; i < some; ++i)
                __builtin_memcpy(square.rows + i, source + ((d + i) * block_tokens + t) * unit, 16);
            square.transpose();
#pragma GCC unroll 8
            for (int i = 0; i < some; ++i) __builtin_memcpy(target + (t + i) * stride + d * unit, square.rows + i, 16);
        }
    }
    for (; d < n; ++d) {
        for (int t = 0; t < block_tokens; ++t)
            __builtin_memcpy(target + t * stride + d * unit, source + (d * block_tokens + t) * unit, unit);
    }
}

// Latent attention: V of a block is the first `dim` dimensions of its K.
template <class T> void copy_values_of_keys(const T *keys, int, int dim, T *to) {
    using Unit = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
    transpose_tokens<Unit>(keys, dim, to, dim * static_cast<int64_t>(sizeof(T)));
}

inline void copy_values_of_keys(const int8_t *keys, int head_dim, int dim, int8_t *to) {
    const int whole = dim / q8_group;
    transpose_tokens<uint32_t>(keys, whole, to, dim);
    for (int t = 0, d = whole * q8_group; t < block_tokens && d < dim; ++t)
        __builtin_memcpy(to + int64_t{t} * dim + d, keys + d * block_tokens + t * q8_group,
                         static_cast<size_t>(dim - d));
    __builtin_memcpy(to + q8_codes_bytes(dim, block_tokens), keys + q8_codes_bytes(head_dim, block_tokens),
                     block_tokens * sizeof(float));
}

// V of a block and kv head: [32 tokens][v_head_dim] of T.
template <class L, class T> class Values {
    using Vec = typename L::Vec;
    static constexpr int width = L::width;

  public:
    static constexpr bool has_scales = sizeof(T) == 1; // an 8-bit cache has scales after its codes
    static constexpr int most_queries = L::registers / 4;
    static constexpr int together = 1; // tokens that one instruction adds up
    static constexpr bool arranges = false;

    static constexpr int weighed_together = width; // in tokens

    // Replace the scores of tokens [begin, end) by their weights relative to the largest score, for an 8-bit cache
    // times the scales of the tokens.  Return the sum of the weights.
    [[gnu::always_inline]] static float weigh(const T *const *blocks, int dim, float *scores, int begin, int end,
                                              float largest) {
        Vec sum = L::set(0.0F);
#pragma GCC unroll 8
        for (int t = begin; t < end; t += width) {
            Vec weight = exponential2<L>(L::sub(L::load(scores + t), L::set(largest)));
            sum = L::add(sum, weight);
            if constexpr (has_scales)
                weight = L::mul(weight, L::load(scales(blocks[t / block_tokens], dim) + t % block_tokens));
            L::store(scores + t, weight);
        }
        return L::total(sum);
    }

    static int64_t block_elements(int dim) {
        if constexpr (has_scales) return static_cast<int64_t>(q8_head_bytes(dim, block_tokens));
        return static_cast<int64_t>(dim) * block_tokens;
    }
    static const float *scales(const T *values, int dim) {
        return reinterpret_cast<const float *>(values + q8_codes_bytes(dim, block_tokens));
    }

    template <int n> static constexpr int n_vectors = L::registers / 2 / n < 8 ? L::registers / 2 / n : 8;

    struct Piece {
        const T *const *blocks; // the step's blocks, each at its first token
        int dim; // v_head_dim
        int begin, end; // range of tokens in the step
        const char *next; // the memory to read after these blocks
        bool ahead;
    };

    // sums [n, sum_stride] = sums * rescale + weights [n, step_tokens] * values, in strips of dimensions, wide ones
    // first.  The width of a strip does not change the sums.
    template <int n>
    static void add(const Piece &piece, const float *weights, const float *rescale, float *sums, int sum_stride) {
        constexpr int m = n_vectors<n>;
        int d = 0;
        for (; d + m * width <= piece.dim; d += m * width)
            add_strip<n, m>(piece, weights, rescale, sums, sum_stride, d);
        for (; d + width <= piece.dim; d += width) add_strip<n, 1>(piece, weights, rescale, sums, sum_stride, d);
        if (d < piece.dim) add_last<n>(piece, weights, rescale, sums, sum_stride, d);
    }

  private:
    // add() for m * width dimensions from d on.
    template <int n, int m>
    [[gnu::noinline]] static void add_strip(const Piece &piece, const float *weights, const float *rescale, float *sums,
                                            int sum_stride, int d) {
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
                        prefetch_line(next + line);
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

    // add() for the last dimensions, fewer than `width`.
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
