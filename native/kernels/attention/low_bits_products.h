// The two products of attention with a cache of 4 or 5 bits (low_bits.h), on widened blocks.
//
// The order is fixed: a score adds its groups of 32 dimensions one by one, each an exact sum of integers; values are
// widened to float, rounded once, and added like those of other caches.
//
// Each instruction set's file includes this once, after its Lanes; nothing here has external linkage.
#pragma once

#include "kernels/attention/attention_products.h"
#include "kernels/attention/low_bits.h"

namespace quire {
namespace {

// Widen scales, and smallest values if the type has them, to floats.
template <class L> void widen_scales(const LowBitsLayout &layout, const LowBits *from, int8_t *wide) {
    auto *to = reinterpret_cast<float *>(wide + int64_t{layout.dim} * block_tokens);
    const int n = layout.n_groups() * block_tokens;
    const auto *scales = reinterpret_cast<const typename L::F16 *>(from + layout.scales());
    const auto *smallest = reinterpret_cast<const typename L::F16 *>(from + layout.smallest());
    for (int i = 0; i < n; i += L::width) L::store(to + i, L::load(scales + i));
    if (!layout.has_fifth) return;
    for (int i = 0; i < n; i += L::width) L::store(to + n + i, L::load(smallest + i));
}

inline void ask_for(const char *memory, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64) prefetch_line(memory + line);
}

template <int n> struct ByteVector {
    typedef uint8_t Bytes __attribute__((vector_size(n)));
    [[gnu::always_inline]] static Bytes load(const void *from) {
        Bytes x;
        __builtin_memcpy(&x, from, n);
        return x;
    }
    [[gnu::always_inline]] static void store(void *to, Bytes x) { __builtin_memcpy(to, &x, n); }
};

// Widen the codes of K to [head_dim / 4][32 tokens][4].
template <class L> void widen_keys(KvType type, const LowBits *from, int dim, int8_t *to, const char *next) {
    constexpr int n = L::width * 4, plane_bytes = 4 * block_tokens;
    using Vector = ByteVector<n>;
    const LowBitsLayout layout(type, dim);
    ask_for(next, layout.bytes());
    const LowBits *fifth = from + layout.fifth();
    const LowBits *codes = from;
    for (int g = 0; g < layout.n_groups(); ++g, fifth += plane_bytes) {
        int8_t *group = to + int64_t{g} * low_bits_group * block_tokens;
#pragma GCC unroll 4
        for (int p = 0; p < 4; ++p, codes += plane_bytes) {
            int8_t *lower = group + 2 * p * plane_bytes, *upper = lower + plane_bytes;
            for (int i = 0; i < plane_bytes; i += n) {
                const auto both = Vector::load(codes + i);
                if (layout.has_fifth) {
                    const auto bits = Vector::load(fifth + i);
                    Vector::store(lower + i, (both & 15) | ((bits >> (2 * p) & 1) << 4));
                    Vector::store(upper + i, (both >> 4) | ((bits >> (2 * p + 1) & 1) << 4));
                } else {
                    Vector::store(lower + i, (both & 15) - 8);
                    Vector::store(upper + i, (both >> 4) - 8);
                }
            }
        }
    }
    widen_scales<L>(layout, from, to);
}

// Widen the codes of V with four bits to [32 tokens][v_head_dim], n dimensions at a time.
template <class L, int n = 16> void widen_value_codes(const LowBits *from, int half, int8_t *to) {
    using Vector = ByteVector<n>;
    if constexpr (n == 16 && L::width > 4) {
        if (half % 32 == 0) return widen_value_codes<L, 32>(from, half, to);
    }
    for (int t = 0; t < block_tokens; ++t, from += half, to += 2 * half) {
        for (int d = 0; d < half; d += n) {
            const auto both = Vector::load(from + d);
            Vector::store(to + d, (both & 15) - 8);
            Vector::store(to + half + d, (both >> 4) - 8);
        }
    }
}

// The fifth bits of 16 dimensions.
[[gnu::always_inline]] inline ByteVector<16>::Bytes fifth_bits(const LowBits *from) {
    typedef uint16_t Pairs __attribute__((vector_size(16)));
    uint16_t pair;
    __builtin_memcpy(&pair, from, sizeof pair);
    const Pairs pairs = Pairs{} + pair;
    ByteVector<16>::Bytes bits;
    __builtin_memcpy(&bits, &pairs, sizeof bits);
    constexpr ByteVector<16>::Bytes place = {1, 1, 2, 2, 4, 4, 8, 8, 16, 16, 32, 32, 64, 64, 128, 128};
    return reinterpret_cast<ByteVector<16>::Bytes>((bits & place) != 0) & 16;
}

template <class L> void widen_values(KvType type, const LowBits *from, int dim, int8_t *to, const char *next) {
    const LowBitsLayout layout(type, dim);
    ask_for(next, layout.bytes());
    const int half = dim / 2;
    if (!layout.has_fifth) {
        widen_value_codes<L>(from, half, to);
    } else {
        using Vector = ByteVector<16>;
        const LowBits *fifth = from + layout.fifth();
        for (int t = 0; t < block_tokens; ++t, fifth += dim / 8) {
            for (int d = 0; d < half; d += 16) {
                const auto both = Vector::load(from + int64_t{t} * half + d);
                int8_t *row = to + int64_t{t} * dim + d;
                Vector::store(row, (both & 15) | fifth_bits(fifth + d / 8));
                Vector::store(row + half, (both >> 4) | fifth_bits(fifth + (half + d) / 8));
            }
        }
    }
    widen_scales<L>(layout, from, to);
}

// Latent attention: widened V is the first `dim` dimensions of widened K.
inline void copy_wide_values_of_keys(const int8_t *keys, int head_dim, int dim, int8_t *to) {
    transpose_tokens<uint32_t>(keys, dim / q8_group, to, dim);
    const auto bytes = static_cast<size_t>(LowBitsLayout::wide_scales_bytes(dim));
    int8_t *scales = to + int64_t{dim} * block_tokens;
    __builtin_memcpy(scales, LowBitsLayout::wide_scales(keys, head_dim), bytes);
    __builtin_memcpy(scales + bytes, LowBitsLayout::wide_smallest(keys, head_dim), bytes);
}

// K, widened.
template <class L> class Keys<L, LowBits> {
    static constexpr int width = L::width;

  public:
    static constexpr int most_queries = L::registers / 4;

    // Write codes as for an 8-bit cache, then their sum in each group.
    static void prepare(const Queries &queries, int i, const float *q, float factor) {
        Keys<L, int8_t>::prepare(queries, i, q, factor);
        const auto *codes = reinterpret_cast<const int8_t *>(queries.rows + i * queries.stride);
        int32_t *sums = group_sums(queries, i);
        for (int g = 0; g < queries.dim / low_bits_group; ++g) {
            int32_t sum = 0;
            for (int d = 0; d < low_bits_group; ++d) sum += codes[g * low_bits_group + d];
            sums[g] = sum;
        }
    }

    template <int n>
    [[gnu::noinline]] static void score(const Queries &queries, int first, const KeyBlock<LowBits> &block, float *out) {
        constexpr int half = L::registers / 4 / n > 0 ? L::registers / 4 / n : 1;
        constexpr int m = half * width < block_tokens ? half : block_tokens / width;
        constexpr int quads = low_bits_group / q8_group;
        const auto *codes = reinterpret_cast<const int8_t *>(block.keys);
        const float *scales = LowBitsLayout::wide_scales(codes, queries.dim);
        const float *smallest = LowBitsLayout::wide_smallest(codes, queries.dim);
        const float *q = queries.rows + first * queries.stride;
        for (int t = 0; t < block_tokens; t += m * width) {
            typename L::Vec total[n][m];
#pragma GCC unroll 8
            for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) total[i][j] = L::set(0.0F);
            }
            const int8_t *at = codes + t * q8_group;
            for (int g = 0; g < queries.dim / low_bits_group; ++g) {
                typename L::Ints sum[n][m];
#pragma GCC unroll 8
                for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
                    for (int j = 0; j < m; ++j) sum[i][j] = L::begin_dot(group_sums(queries, first + i)[g]);
                }
#pragma GCC unroll 8
                for (int quad = 0; quad < quads; ++quad, at += block_tokens * q8_group) {
                    typename L::Codes key[m];
#pragma GCC unroll 8
                    for (int j = 0; j < m; ++j) key[j] = L::load_keys(at + j * width * q8_group);
#pragma GCC unroll 8
                    for (int i = 0; i < n; ++i) {
                        const typename L::Codes x = L::set_query(q + i * queries.stride + g * quads + quad);
#pragma GCC unroll 8
                        for (int j = 0; j < m; ++j) sum[i][j] = L::add_dot(sum[i][j], key[j], x);
                    }
                }
                const int place = g * block_tokens + t;
                if (queries.has_smallest) {
#pragma GCC unroll 8
                    for (int i = 0; i < n; ++i) {
                        const auto x = L::set(static_cast<float>(group_sums(queries, first + i)[g]));
#pragma GCC unroll 8
                        for (int j = 0; j < m; ++j)
                            total[i][j] = L::fma(x, L::load(smallest + place + j * width), total[i][j]);
                    }
                }
#pragma GCC unroll 8
                for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
                    for (int j = 0; j < m; ++j) {
                        const auto scale = L::load(scales + place + j * width);
                        total[i][j] = L::fma(L::to_floats(sum[i][j]), scale, total[i][j]);
                    }
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < n; ++i) {
                const auto scale = L::set(queries.scales[first + i]);
#pragma GCC unroll 8
                for (int j = 0; j < m; ++j) L::store(out + i * step_tokens + t + j * width, L::mul(total[i][j], scale));
            }
        }
    }

  private:
    // The group sums follow the codes, which take a quarter of the row.
    static int32_t *group_sums(const Queries &queries, int i) {
        return reinterpret_cast<int32_t *>(queries.rows + i * queries.stride) + queries.dim / q8_group;
    }
};

// V, widened.
template <class L> class Values<L, LowBits> {
    using Vec = typename L::Vec;
    static constexpr int width = L::width;

  public:
    static constexpr int most_queries = L::registers / 4;
    static constexpr int together = 1;
    static constexpr bool arranges = false;
    static constexpr int weighed_together = width;

    [[gnu::always_inline]] static float weigh(const LowBits *const *, int, float *scores, int begin, int end,
                                              float largest) {
        return Values<L, float>::weigh(nullptr, 0, scores, begin, end, largest);
    }

    struct Piece {
        const LowBits *const *blocks; // the step's blocks, each at its first token
        int dim; // v_head_dim
        int begin, end; // range of tokens in the step
        const char *next; // not used: widening the blocks prefetched it
        bool ahead;
        bool has_smallest = false;
    };

    // A strip is one or two groups, or part of one.  The sums of two groups are independent, which hides their latency.
    template <int n>
    [[gnu::noinline]] static void add(const Piece &piece, const float *weights, const float *rescale, float *sums,
                                      int sum_stride) {
        constexpr int of_registers = L::registers / 2 / n, of_group = low_bits_group / width;
        constexpr int n_groups = of_registers >= 2 * of_group ? 2 : 1;
        constexpr int m = of_registers < of_group ? of_registers : of_group; // registers per group
        static_assert(of_group % m == 0, "a strip lies in one group");
        for (int d = 0; d < piece.dim; d += n_groups * m * width) {
            // If the last strip has only one group, it is computed twice.
            int at[n_groups];
#pragma GCC unroll 2
            for (int g = 0; g < n_groups; ++g) at[g] = d + g * m * width < piece.dim ? d + g * m * width : d;
            Vec sum[n][n_groups][m];
#pragma GCC unroll 8
            for (int i = 0; i < n; ++i) {
#pragma GCC unroll 2
                for (int g = 0; g < n_groups; ++g) {
#pragma GCC unroll 8
                    for (int j = 0; j < m; ++j) {
                        const Vec before = L::load(sums + i * sum_stride + at[g] + j * width);
                        sum[i][g][j] = L::mul(before, L::set(rescale[i]));
                    }
                }
            }
            for (int t = piece.begin; t < piece.end;) {
                const int b = t / block_tokens, first = b * block_tokens;
                const int stop = piece.end < first + block_tokens ? piece.end : first + block_tokens;
                const auto *codes = reinterpret_cast<const int8_t *>(piece.blocks[b]);
                const float *scales[n_groups], *smallest[n_groups];
#pragma GCC unroll 2
                for (int g = 0; g < n_groups; ++g) {
                    const int place = at[g] / low_bits_group * block_tokens;
                    scales[g] = LowBitsLayout::wide_scales(codes, piece.dim) + place;
                    smallest[g] = LowBitsLayout::wide_smallest(codes, piece.dim) + place;
                }
                // Without smallest values, the scales are multiplied into the weights.
                float scaled[n_groups][n][block_tokens];
                if (!piece.has_smallest) {
#pragma GCC unroll 2
                    for (int g = 0; g < n_groups; ++g) {
                        for (int i = 0; i < n; ++i) {
                            for (int k = 0; k < block_tokens; k += width) {
                                const Vec weight = L::load(weights + i * step_tokens + first + k);
                                L::store(scaled[g][i] + k, L::mul(weight, L::load(scales[g] + k)));
                            }
                        }
                    }
                }
                // Two loops, because compilers do not keep sums in registers across branches.
                auto add_tokens = [&]<bool has_smallest>() __attribute__((always_inline)) {
                    for (int k = t - first; k < stop - first; ++k) {
                        const int8_t *row = codes + int64_t{k} * piece.dim;
#pragma GCC unroll 2
                        for (int g = 0; g < n_groups; ++g) {
                            Vec value[m];
#pragma GCC unroll 8
                            for (int j = 0; j < m; ++j) {
                                value[j] = L::load(row + at[g] + j * width);
                                if constexpr (has_smallest)
                                    value[j] = L::fma(value[j], L::set(scales[g][k]), L::set(smallest[g][k]));
                            }
#pragma GCC unroll 8
                            for (int i = 0; i < n; ++i) {
                                const float *from = has_smallest ? weights + i * step_tokens + first : scaled[g][i];
                                const Vec weight = L::set(from[k]);
#pragma GCC unroll 8
                                for (int j = 0; j < m; ++j) sum[i][g][j] = L::fma(weight, value[j], sum[i][g][j]);
                            }
                        }
                    }
                };
                if (piece.has_smallest)
                    add_tokens.template operator()<true>();
                else
                    add_tokens.template operator()<false>();
                t = stop;
            }
#pragma GCC unroll 8
            for (int i = 0; i < n; ++i) {
#pragma GCC unroll 2
                for (int g = 0; g < n_groups; ++g) {
#pragma GCC unroll 8
                    for (int j = 0; j < m; ++j) L::store(sums + i * sum_stride + at[g] + j * width, sum[i][g][j]);
                }
            }
        }
    }
};

} // namespace
} // namespace quire
