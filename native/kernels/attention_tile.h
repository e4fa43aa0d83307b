// The attention of a tile of queries, as a template over the vector type of an instruction set.
//
// Softmax is taken in one pass over the blocks: each query keeps the largest score so far, the sum of exponentials
// below it and the weighted sum of values, and rescales the latter two when a block raises the first (Milakov and
// Gimelshein 2018; Dao et al. 2022).  A block of K and V is read once for all queries of the tile.
//
// Fixed order: a query visits the blocks that it sees in order.  A score sums over head_dim in `width` lanes, then over
// the lanes by one tree; exponentials of a block are summed as 32 lanes, those that are not seen being zero; values are
// added token by token.  Queries are taken four, two or one at a time, which changes none of it.  No multiplication and
// addition may be fused but by fma(): these files are compiled with -ffp-contract=off.
//
// Included once by each instruction set's file, after its Lanes; nothing here has external linkage.
#pragma once

#include "kernels/attention_kernels.h"
#include "kernels/vector_math.h"

namespace quire {
namespace {

constexpr int block_tokens = kv_block_tokens;

// The tokens [begin, end) of a block that a query sees.
struct Range {
    int begin, end;
    bool operator==(const Range &) const = default;
};

template <class L, class T> class TileAttention {
    using Vec = typename L::Vec;
    static constexpr int width = L::width;

  public:
    explicit TileAttention(const AttentionTile &tile)
        : tile_(tile), shape_(*tile.shape), n_queries_(tile.n_heads * tile.n_rows), q_stride_(padded(shape_.head_dim)),
          sum_stride_(padded(shape_.v_head_dim)), queries_(tile.scratch),
          sums_(queries_ + max_tile_queries * q_stride_), scores_(sums_ + max_tile_queries * sum_stride_),
          largest_(scores_ + max_tile_queries * block_tokens), total_(largest_ + max_tile_queries),
          rescale_(total_ + max_tile_queries) {}

    void run() {
        start();
        const int window = shape_.window;
        const int oldest = window > 0 && tile_.position >= window ? tile_.position - window + 1 : 0;
        const int newest = tile_.position + tile_.n_rows - 1;
        const int last = newest / block_tokens;
        for (int block = oldest / block_tokens; block <= last; ++block) {
            next_ = tile_.table[block < last ? block + 1 : block];
            visit(block);
        }
        finish();
    }

  private:
    static int padded(int n) { return (n + 15) / 16 * 16; }

    void start() {
        for (int i = 0; i < n_queries_; ++i) {
            const float *from = tile_.q + row_offset(i, shape_.head_dim);
            float *to = queries_ + i * q_stride_;
            for (int d = 0; d < shape_.head_dim; ++d) to[d] = from[d] * shape_.scale;
            for (int d = shape_.head_dim; d < q_stride_; ++d) to[d] = 0.0F;
            for (int d = 0; d < sum_stride_; ++d) sums_[i * sum_stride_ + d] = 0.0F;
            // A sink is a score seen before all others, with a value of zero.
            largest_[i] = tile_.sinks == nullptr ? -infinity : tile_.sinks[i % tile_.n_heads];
            total_[i] = tile_.sinks == nullptr ? 0.0F : 1.0F;
        }
    }

    void finish() {
        for (int i = 0; i < n_queries_; ++i) {
            float *to = tile_.out + row_offset(i, shape_.v_head_dim);
            const float *from = sums_ + i * sum_stride_;
            for (int d = 0; d < shape_.v_head_dim; ++d) to[d] = from[d] / total_[i];
        }
    }

    int64_t row_offset(int query, int dim) const {
        return (static_cast<int64_t>(query / tile_.n_heads) * shape_.n_head + query % tile_.n_heads) * dim;
    }

    // What the row sees of a block; empty when begin >= end.
    Range seen(int row, int block) const {
        const int last = tile_.position + row - block * block_tokens;
        const int first = shape_.window > 0 && last >= shape_.window ? last - shape_.window + 1 : 0;
        return {first, last + 1 < block_tokens ? last + 1 : block_tokens};
    }

    // Rows that see the same tokens of a block go together: all of them but where the block crosses a limit.
    void visit(int block) {
        for (int row = 0; row < tile_.n_rows;) {
            const Range range = seen(row, block);
            int end = row + 1;
            while (end < tile_.n_rows && seen(end, block) == range) ++end;
            if (range.begin < range.end) attend(tile_.table[block], range, row * tile_.n_heads, end * tile_.n_heads);
            row = end;
        }
    }

    const T *keys_of(int32_t block) const {
        const int64_t at = (static_cast<int64_t>(block) * shape_.n_kv_head + tile_.kv_head) * block_tokens;
        return static_cast<const T *>(tile_.k_pool) + at * shape_.head_dim;
    }
    const T *values_of(int32_t block) const {
        const int64_t at = (static_cast<int64_t>(block) * shape_.n_kv_head + tile_.kv_head) * block_tokens;
        return static_cast<const T *>(tile_.v_pool) + at * shape_.v_head_dim;
    }

    // Blocks lie anywhere, so the hardware does not foresee the next one.
    static void prefetch(const T *from, int n) {
        for (int i = 0; i < n; i += static_cast<int>(64 / sizeof(T))) __builtin_prefetch(from + i);
    }

    void attend(int32_t block, Range range, int begin, int end) {
        const T *k = keys_of(block);
        const T *v = values_of(block);
        int i = begin;
        for (; i + 4 <= end; i += 4) attend_queries<4>(k, v, range, i);
        if (i + 2 <= end) {
            attend_queries<2>(k, v, range, i);
            i += 2;
        }
        if (i < end) attend_queries<1>(k, v, range, i);
    }

    template <int n> void attend_queries(const T *k, const T *v, Range range, int first) {
        constexpr int step = width / n;
        const bool ahead = first == 0; // once for all queries of the tile
        for (int t = range.begin / step * step; t < range.end; t += step) {
            if (ahead) prefetch(keys_of(next_) + t * shape_.head_dim, step * shape_.head_dim);
            score<n>(k, t, first);
        }
        for (int i = first; i < first + n; ++i) weigh(range, i);
        // Wide pieces first; a piece's width changes no sum.
        constexpr int wide = (n == 4 ? 4 : 8) * width;
        int d = 0;
        for (; d + wide <= shape_.v_head_dim; d += wide) add_values<n, wide / width>(v, range, first, d);
        for (; d + width <= shape_.v_head_dim; d += width) add_values<n, 1>(v, range, first, d);
        if (d < shape_.v_head_dim) add_last_values<n>(v, range, first, d);
    }

    // Scores of n queries with the width / n tokens from t on.
    template <int n> void score(const T *k, int t, int first) {
        constexpr int step = width / n;
        const int dim = shape_.head_dim;
        const float *q = queries_ + first * q_stride_;
        const T *keys = k + static_cast<int64_t>(t) * dim;
        Vec sum[width];
#pragma GCC unroll 16
        for (int i = 0; i < width; ++i) sum[i] = L::set(0.0F);
        int d = 0;
        for (; d + width <= dim; d += width) {
#pragma GCC unroll 16
            for (int j = 0; j < step; ++j) {
                const Vec key = L::load(keys + j * dim + d);
#pragma GCC unroll 4
                for (int i = 0; i < n; ++i)
                    sum[i * step + j] = L::fma(L::load(q + i * q_stride_ + d), key, sum[i * step + j]);
            }
        }
        if (d < dim) {
#pragma GCC unroll 16
            for (int j = 0; j < step; ++j) {
                const Vec key = L::load_part(keys + j * dim + d, dim - d);
#pragma GCC unroll 4
                for (int i = 0; i < n; ++i)
                    sum[i * step + j] = L::fma(L::load(q + i * q_stride_ + d), key, sum[i * step + j]);
            }
        }
        float found[width];
        L::store(found, L::lane_sums(sum));
        for (int i = 0; i < n; ++i)
            __builtin_memcpy(scores_ + (first + i) * block_tokens + t, found + i * step, step * sizeof(float));
    }

    // Scores of one query become weights relative to its largest score so far.
    void weigh(Range range, int i) {
        float *scores = scores_ + i * block_tokens;
        if (shape_.soft_cap != 0.0F) {
            const Vec cap = L::set(shape_.soft_cap), inverse = L::set(1.0F / shape_.soft_cap);
            for (int t = range.begin / width * width; t < range.end; t += width) {
                L::store(scores + t, L::mul(cap, hyperbolic_tangent<L>(L::mul(inverse, L::load(scores + t)))));
            }
        }
        for (int t = 0; t < range.begin; ++t) scores[t] = -infinity;
        for (int t = range.end; t < block_tokens; ++t) scores[t] = -infinity;
        Vec highest = L::load(scores);
        for (int t = width; t < block_tokens; t += width) highest = L::max(highest, L::load(scores + t));
        const float before = largest_[i], now = L::largest(highest);
        const float largest = now > before ? now : before;
        Vec sum = L::set(0.0F);
        for (int t = 0; t < block_tokens; t += width) {
            const Vec weight = exponential<L>(L::sub(L::load(scores + t), L::set(largest)));
            L::store(scores + t, weight);
            sum = L::add(sum, weight);
        }
        rescale_[i] = largest == before ? 1.0F : L::first(exponential<L>(L::set(before - largest)));
        largest_[i] = largest;
        total_[i] = total_[i] * rescale_[i] + L::total(sum);
    }

    // Add the weighted values of m * width dimensions from d on to the sums of n queries.
    template <int n, int m> void add_values(const T *v, Range range, int first, int d) {
        Vec sum[n][m];
        float *sums = sums_ + first * sum_stride_ + d;
        const float *weights = scores_ + first * block_tokens;
#pragma GCC unroll 4
        for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < m; ++j)
                sum[i][j] = L::mul(L::load(sums + i * sum_stride_ + j * width), L::set(rescale_[first + i]));
        }
        const T *values = v + static_cast<int64_t>(range.begin) * shape_.v_head_dim + d;
        const T *next = values_of(next_) + static_cast<int64_t>(range.begin) * shape_.v_head_dim + d;
        for (int t = range.begin; t < range.end; ++t, values += shape_.v_head_dim, next += shape_.v_head_dim) {
            if (first == 0) prefetch(next, m * width);
#pragma GCC unroll 8
            for (int j = 0; j < m; ++j) {
                const Vec value = L::load(values + j * width);
#pragma GCC unroll 4
                for (int i = 0; i < n; ++i) sum[i][j] = L::fma(L::set(weights[i * block_tokens + t]), value, sum[i][j]);
            }
        }
#pragma GCC unroll 4
        for (int i = 0; i < n; ++i) {
#pragma GCC unroll 8
            for (int j = 0; j < m; ++j) L::store(sums + i * sum_stride_ + j * width, sum[i][j]);
        }
    }

    // The same for the last dimensions, fewer than `width`.
    template <int n> void add_last_values(const T *v, Range range, int first, int d) {
        Vec sum[n];
        float *sums = sums_ + first * sum_stride_ + d;
        const float *weights = scores_ + first * block_tokens;
        for (int i = 0; i < n; ++i) sum[i] = L::mul(L::load(sums + i * sum_stride_), L::set(rescale_[first + i]));
        for (int t = range.begin; t < range.end; ++t) {
            const Vec value = L::load_part(v + static_cast<int64_t>(t) * shape_.v_head_dim + d, shape_.v_head_dim - d);
            for (int i = 0; i < n; ++i) sum[i] = L::fma(L::set(weights[i * block_tokens + t]), value, sum[i]);
        }
        for (int i = 0; i < n; ++i) L::store(sums + i * sum_stride_, sum[i]);
    }

    const AttentionTile &tile_;
    const AttentionShape &shape_;
    int n_queries_, q_stride_, sum_stride_;
    int32_t next_ = 0;
    // Per query: itself times scale, its weighted sum of values, its scores in the block at hand, and the three numbers
    // of the softmax.
    float *queries_, *sums_, *scores_, *largest_, *total_, *rescale_;
};

template <class L> void attend_tile(const AttentionTile &tile) {
    switch (tile.shape->type) {
    case KvType::f32: TileAttention<L, float>(tile).run(); break;
    case KvType::f16: TileAttention<L, typename L::F16>(tile).run(); break;
    case KvType::bf16: TileAttention<L, typename L::Bf16>(tile).run(); break;
    }
}

} // namespace
} // namespace quire
