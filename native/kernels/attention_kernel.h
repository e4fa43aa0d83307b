// The attention kernel over an abstract vector type `V` of floats.
//
// V lives in an unnamed namespace of the file that instantiates this, so that code compiled for one instruction set
// is never what another file's template resolves to.  V offers: width, reg; zero, set1, load, store, load_part,
// store_part (the first n floats), load of f16 and bf16, add, sub, mul, fma, max, round, pow2 (2^n for whole n),
// sum and largest of all lanes.  Only builtins and these are used here.
#pragma once

#include "kernels/paged_attention.h"

namespace quire {

template <class V> struct AttentionKernel {
    using reg = typename V::reg;
    static constexpr int block = attention_block_tokens;

    static int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

    // exp of values that are 0 or below: Cody and Waite's reduction and a polynomial of degree 6; 2 ulp.
    static reg exp(reg x) {
        x = V::max(x, V::set1(-87.0F));
        reg n = V::round(V::mul(x, V::set1(1.44269504F)));
        reg r = V::fma(n, V::set1(-0.693145752F), x);
        r = V::fma(n, V::set1(-1.42860677e-6F), r);
        reg p = V::set1(1.38888889e-3F);
        p = V::fma(p, r, V::set1(8.33333333e-3F));
        p = V::fma(p, r, V::set1(4.16666667e-2F));
        p = V::fma(p, r, V::set1(1.66666667e-1F));
        p = V::fma(p, r, V::set1(0.5F));
        p = V::fma(p, r, V::set1(1.0F));
        p = V::fma(p, r, V::set1(1.0F));
        return V::mul(p, V::pow2(n));
    }

    // A row of n elements as f32, with zeros up to the padded width.
    static void widen(KvType type, const void *pool, int64_t offset, int n, float *to) {
        int64_t i = 0;
        for (; i + V::width <= n; i += V::width) V::store(to + i, load(type, pool, offset + i));
        if (i < n) {
            alignas(64) float rest[16] = {};
            for (int64_t j = i; j < n; ++j) rest[j - i] = V::one(type, pool, offset + j);
            for (int64_t j = 0; j < V::width; ++j) to[i + j] = rest[j];
            i += V::width;
        }
        for (; i < padded(n); ++i) to[i] = 0.0F;
    }

    static reg load(KvType type, const void *pool, int64_t offset) {
        switch (type) {
        case KvType::f16: return V::load_f16(static_cast<const uint16_t *>(pool) + offset);
        case KvType::bf16: return V::load_bf16(static_cast<const uint16_t *>(pool) + offset);
        default: return V::load(static_cast<const float *>(pool) + offset);
        }
    }

    static float dot(const float *a, const float *b, int64_t n) {
        reg even = V::zero(), odd = V::zero();
        int64_t i = 0;
        for (; i + 2 * V::width <= n; i += 2 * V::width) {
            even = V::fma(V::load(a + i), V::load(b + i), even);
            odd = V::fma(V::load(a + i + V::width), V::load(b + i + V::width), odd);
        }
        if (i < n) even = V::fma(V::load(a + i), V::load(b + i), even);
        return V::sum(V::add(even, odd));
    }

    // One query's state over the blocks seen so far.
    struct Query {
        float *q, *sum_v, *scores;
        float largest, sum;
        int position;
    };

    // Scores of tokens [first, last) of the block, softmaxed against the running maximum; sum_v and sum are rescaled.
    static void score(const AttentionShape &shape, Query &query, const float *k, int first, int last) {
        const int64_t dim = padded(shape.head_dim);
        for (int t = 0; t < block; ++t) query.scores[t] = -__builtin_inff();
        for (int t = first; t < last; ++t) {
            float s = dot(query.q, k + t * dim, dim) * shape.scale;
            query.scores[t] = shape.soft_cap > 0 ? shape.soft_cap * __builtin_tanhf(s / shape.soft_cap) : s;
        }
        reg top = V::load(query.scores);
        for (int t = V::width; t < block; t += V::width) top = V::max(top, V::load(query.scores + t));
        float largest = V::largest(top);
        if (largest > query.largest) {
            float shrink = query.largest == -__builtin_inff() ? 0.0F : __builtin_expf(query.largest - largest);
            reg factor = V::set1(shrink);
            for (int64_t i = 0; i < padded(shape.v_head_dim); i += V::width) V::store(query.sum_v + i, V::mul(factor, V::load(query.sum_v + i)));
            query.sum *= shrink;
            query.largest = largest;
        }
        reg total = V::zero(), base = V::set1(query.largest);
        for (int t = 0; t < block; t += V::width) {
            V::store(query.scores + t, exp(V::sub(V::load(query.scores + t), base)));
        }
        // Tokens that are not attended to count nothing, whatever their slots hold.
        for (int t = 0; t < first; ++t) query.scores[t] = 0.0F;
        for (int t = last; t < block; ++t) query.scores[t] = 0.0F;
        for (int t = 0; t < block; t += V::width) total = V::add(total, V::load(query.scores + t));
        query.sum += V::sum(total);
    }

    static void mix(const AttentionShape &shape, Query &query, const float *v, int first, int last) {
        const int64_t dim = padded(shape.v_head_dim);
        int64_t i = 0;
        for (; i + 4 * V::width <= dim; i += 4 * V::width) {
            reg a = V::load(query.sum_v + i), b = V::load(query.sum_v + i + V::width);
            reg c = V::load(query.sum_v + i + 2 * V::width), d = V::load(query.sum_v + i + 3 * V::width);
            for (int t = first; t < last; ++t) {
                const float *row = v + t * dim + i;
                reg p = V::set1(query.scores[t]);
                a = V::fma(p, V::load(row), a);
                b = V::fma(p, V::load(row + V::width), b);
                c = V::fma(p, V::load(row + 2 * V::width), c);
                d = V::fma(p, V::load(row + 3 * V::width), d);
            }
            V::store(query.sum_v + i, a);
            V::store(query.sum_v + i + V::width, b);
            V::store(query.sum_v + i + 2 * V::width, c);
            V::store(query.sum_v + i + 3 * V::width, d);
        }
        for (; i < dim; i += V::width) {
            reg a = V::load(query.sum_v + i);
            for (int t = first; t < last; ++t) a = V::fma(V::set1(query.scores[t]), V::load(v + t * dim + i), a);
            V::store(query.sum_v + i, a);
        }
    }

    static int first_visible(const AttentionShape &shape, int position) {
        return shape.window > 0 && position - shape.window + 1 > 0 ? position - shape.window + 1 : 0;
    }

    static Query start(const AttentionShape &shape, const AttentionData &data, const AttentionPiece &piece, int number, float *&scratch) {
        const int group = shape.n_head / shape.n_kv_head;
        const int64_t row = piece.first_row + number / group, head = int64_t{piece.kv_head} * group + number % group;
        Query query{};
        query.q = scratch;
        query.sum_v = query.q + padded(shape.head_dim);
        query.scores = query.sum_v + padded(shape.v_head_dim);
        scratch = query.scores + block;
        widen(KvType::f32, data.q, (row * shape.n_head + head) * shape.head_dim, shape.head_dim, query.q);
        for (int64_t i = 0; i < padded(shape.v_head_dim); ++i) query.sum_v[i] = 0.0F;
        // A sink is a score without a value.
        query.largest = data.sinks != nullptr ? data.sinks[head] : -__builtin_inff();
        query.sum = data.sinks != nullptr ? 1.0F : 0.0F;
        query.position = piece.first_position + number / group;
        return query;
    }

    static void finish(const AttentionShape &shape, const AttentionData &data, const AttentionPiece &piece, int number, const Query &query) {
        const int group = shape.n_head / shape.n_kv_head;
        const int64_t row = piece.first_row + number / group, head = int64_t{piece.kv_head} * group + number % group;
        float *out = data.out + (row * shape.n_head + head) * shape.v_head_dim;
        const float inverse = 1.0F / query.sum;
        for (int i = 0; i < shape.v_head_dim; ++i) out[i] = query.sum_v[i] * inverse;
    }

    static void attend(const AttentionShape &shape, const AttentionData &data, const AttentionPiece &piece) {
        const int group = shape.n_head / shape.n_kv_head;
        // Heads beyond the bound are taken in turns, so that the states fit the stack.
        constexpr int at_once = 64;
        for (int begin = 0; begin < piece.n_rows * group; begin += at_once) {
            int n = piece.n_rows * group - begin < at_once ? piece.n_rows * group - begin : at_once;
            attend_some(shape, data, piece, begin, n);
        }
    }

    static void attend_some(const AttentionShape &shape, const AttentionData &data, const AttentionPiece &piece, int begin, int n) {
        Query queries[64];
        float *scratch = piece.scratch;
        for (int i = 0; i < n; ++i) queries[i] = start(shape, data, piece, begin + i, scratch);
        float *rows = scratch;
        const int first_token = first_visible(shape, queries[0].position), last_token = queries[n - 1].position;
        for (int b = first_token / block; b <= last_token / block; ++b) {
            const int64_t row = (int64_t{piece.table[b]} * shape.n_kv_head + piece.kv_head) * block;
            const int held = last_token + 1 - b * block < block ? last_token + 1 - b * block : block; // later slots may hold anything
            auto visible = [&](const Query &query, int &first, int &last) {
                first = first_visible(shape, query.position) - b * block;
                last = query.position + 1 - b * block;
                first = first < 0 ? 0 : first;
                last = last > block ? block : last;
                return first < last;
            };
            int first = 0, last = 0;
            for (int t = 0; t < held; ++t) widen(shape.type, data.k_pool, (row + t) * shape.head_dim, shape.head_dim, rows + t * padded(shape.head_dim));
            for (int i = 0; i < n; ++i) {
                if (visible(queries[i], first, last)) score(shape, queries[i], rows, first, last);
            }
            for (int t = 0; t < held; ++t) widen(shape.type, data.v_pool, (row + t) * shape.v_head_dim, shape.v_head_dim, rows + t * padded(shape.v_head_dim));
            for (int i = 0; i < n; ++i) {
                if (visible(queries[i], first, last)) mix(shape, queries[i], rows, first, last);
            }
        }
        for (int i = 0; i < n; ++i) finish(shape, data, piece, begin + i, queries[i]);
    }

    static void store_row(KvType type, const float *from, void *pool, int64_t offset, int n) {
        for (int i = 0; i < n; ++i) {
            switch (type) {
            case KvType::f16: static_cast<uint16_t *>(pool)[offset + i] = V::to_f16(from[i]); break;
            case KvType::bf16: static_cast<uint16_t *>(pool)[offset + i] = V::to_bf16(from[i]); break;
            case KvType::f32: static_cast<float *>(pool)[offset + i] = from[i]; break;
            }
        }
    }
};

// bf16 by rounding to the nearest, ties to even; what is not a number stays so.
template <class V> struct Bf16 {
    static uint16_t from(float x) {
        uint32_t bits;
        __builtin_memcpy(&bits, &x, sizeof bits);
        if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
        return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
    }
    static float to(uint16_t half) {
        uint32_t bits = static_cast<uint32_t>(half) << 16;
        float x;
        __builtin_memcpy(&x, &bits, sizeof x);
        return x;
    }
};

} // namespace quire
