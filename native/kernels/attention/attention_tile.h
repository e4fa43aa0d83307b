// The attention of a tile of queries, as a template over the vector type of an instruction set.
//
// Softmax takes one pass over the blocks: each query keeps the largest score so far, the sum of exponentials relative
// to it and the weighted sum of values, and rescales the last two when a step raises the first (Milakov and Gimelshein
// 2018; Dao et al. 2022).  Each chunk starts a new state, which is merged into that of the chunks before it, so
// different workers may visit different chunks.  K and V of a step are read once for all queries of the tile whose
// tables have the same blocks there.
//
// The order is fixed: see attention_products.h for products.  The weights of a step are summed in lanes, token t in
// lane t % weighed_together, then over the lanes by one tree.  Weights of invisible tokens are zero or omitted, which
// gives the same bits.  Multiplications and additions are fused only by fma(): these files are compiled with
// -ffp-contract=off.
//
// Each instruction set's file includes this once, after its Lanes; nothing here has external linkage.
#pragma once

#include <type_traits>

#include "kernels/attention/attention_products.h"
#include "kernels/attention/low_bits_products.h"
#include "kernels/attention/query_states.h"

namespace quire {
namespace {

// TK and TV are the element types of K and V.
template <class L, class TK, class TV = TK> class TileAttention {
    using Vec = typename L::Vec;
    static constexpr int width = L::width;
    using K = Keys<L, TK>;
    using V = Values<L, TV>;
    static constexpr bool widens_keys = std::is_same_v<TK, LowBits>, widens_values = std::is_same_v<TV, LowBits>;

  public:
    explicit TileAttention(const AttentionTile &tile)
        : tile_(tile), shape_(*tile.shape), steps_(tile), n_(tile.n_queries),
          queries_{tile.scratch, padded_floats(shape_.head_dim), shape_.head_dim, nullptr,
                   nullptr,      shape_.k_type == KvType::q5_1},
          states_(tile, tile.scratch + n_ * queries_.stride, padded_floats(shape_.v_head_dim)), scores_(states_.end()),
          key_elements_(elements<K, TK>(shape_.k_type, shape_.head_dim)),
          value_elements_(elements<V, TV>(shape_.v_type, shape_.v_head_dim)) {
        queries_.scales = scores_ + n_ * step_tokens;
        queries_.sums = reinterpret_cast<int32_t *>(queries_.scales + max_tile_queries);
        arranged_ = reinterpret_cast<TV *>(queries_.sums + max_tile_queries);
        int32_t *own = queries_.sums + max_tile_queries + step_tokens / 2 * ((shape_.v_head_dim + 31) / 32 * 32);
        own_values_ = reinterpret_cast<TV *>(own);
        if (shape_.v_in_k || widens_values) own += step_tokens * padded_floats(shape_.v_head_dim + 1);
        wide_keys_ = reinterpret_cast<int8_t *>(own);
    }

    void run() {
        const float factor = shape_.soft_cap == 0.0F ? shape_.scale * log2_e : shape_.scale;
        for (int i = 0; i < n_; ++i) K::prepare(queries_, i, tile_.queries[i].q, factor);
        constexpr auto in_order = [](float *) {};
        for (int chunk = tile_.first_chunk; chunk < tile_.last_chunk; ++chunk) {
            states_.begin_chunk();
            for (int64_t d = 0; d < int64_t{n_} * states_.stride(); ++d) states_.sums(0)[d] = 0.0F;
            constexpr int n_steps = kv_chunk_tokens / step_tokens;
            for (int step = chunk * n_steps; step < (chunk + 1) * n_steps; ++step) visit_step(step);
            states_.end_chunk(chunk, in_order);
        }
        if (tile_.partials == nullptr) states_.write_results(in_order);
    }

  private:
    void visit_step(int step) {
        step_ = step;
        if (tile_.n_kv_heads == 1) return steps_.each_run(step, [&](Range run) { attend(step, run.begin, run.end); });
        if (steps_.sees(0, step)) attend_heads(step);
    }

    // The number of elements in a block and head.
    template <class Products, class T> static int64_t elements(KvType type, int dim) {
        if constexpr (std::is_same_v<T, LowBits>)
            return LowBitsLayout(type, dim).bytes();
        else
            return Products::block_elements(dim);
    }

    // `head` counts from the tile's first kv head.
    const TK *keys_of(int32_t block, int head = 0) const {
        const int64_t at = static_cast<int64_t>(block) * shape_.n_kv_head + tile_.kv_head + head;
        return static_cast<const TK *>(tile_.k_pool) + at * key_elements_;
    }
    const TV *values_of(int32_t block, int head = 0) const {
        const int64_t at = static_cast<int64_t>(block) * shape_.n_kv_head + tile_.kv_head + head;
        return static_cast<const TV *>(tile_.v_pool) + at * value_elements_;
    }

    // The form that products read: a cache of 4 or 5 bits is widened, prefetching the memory at `next` meanwhile.
    const TK *readable(const TK *keys, [[maybe_unused]] const void *next) {
        if constexpr (widens_keys) {
            widen_keys<L>(shape_.k_type, keys, shape_.head_dim, wide_keys_, static_cast<const char *>(next));
            return reinterpret_cast<const TK *>(wide_keys_);
        }
        return keys;
    }
    // `b` is the block's index in the step.
    const TV *readable(const TV *values, [[maybe_unused]] int b, [[maybe_unused]] const void *next) {
        if constexpr (widens_values) {
            TV *to = own_values(b);
            widen_values<L>(shape_.v_type, values, shape_.v_head_dim, reinterpret_cast<int8_t *>(to),
                            static_cast<const char *>(next));
            return to;
        }
        return values;
    }
    TV *own_values(int b) const {
        if constexpr (widens_values)
            return own_values_ + b * LowBitsLayout::wide_bytes(shape_.v_head_dim);
        else
            return own_values_ + b * value_elements_;
    }

    // Prefetch the scales of an 8-bit cache: weights are multiplied by them before the values are read.
    void ask_for_scales_of([[maybe_unused]] const TV *values) const {
        if constexpr (std::is_same_v<TV, int8_t>) {
            ask_for_scales(reinterpret_cast<const char *>(V::scales(values, shape_.v_head_dim)));
        }
    }

    // The memory read after this step of the queries before `end`: keys of the next queries, or of the first query in
    // the next step.
    const char *after(int step, int end) const {
        const bool same_step = end < n_ && steps_.sees(end, step);
        const int i = same_step ? end : 0;
        const int block = (step + (same_step ? 0 : 1)) * kv_step_blocks;
        const int last = tile_.queries[i].newest / block_tokens;
        return reinterpret_cast<const char *>(keys_of(tile_.queries[i].table[block < last ? block : last]));
    }

    // One step of a row's queries of several heads, in memory order: block by block, all heads of a block together.
    void attend_heads(int step) {
        const Range seen = steps_.seen(0, step);
        const int32_t *table = tile_.queries[0].table + step * kv_step_blocks;
        const int first = seen.begin / block_tokens, n = steps_.n_blocks(0, step);
        const int n_heads = tile_.n_kv_heads, group = n_ / n_heads;
        for (int i = 0; i < n_; ++i) seen_[i] = seen;
        auto each = [&](auto address, const void *after, auto act) {
            for (int b = first; b < n; ++b) {
                for (int head = 0; head < n_heads; ++head) {
                    const void *next = head + 1 < n_heads ? address(table[b], head + 1)
                                       : b + 1 < n        ? address(table[b + 1], 0)
                                                          : after;
                    act(b, head, static_cast<const char *>(next));
                }
            }
        };
        auto keys = [&](int32_t block, int head) -> const void * { return keys_of(block, head); };
        auto values = [&](int32_t block, int head) -> const void * { return values_of(block, head); };
        for (int b = first; b < n; ++b) {
            for (int head = 0; head < n_heads; ++head) ask_for_scales_of(values_of(table[b], head));
        }
        each(keys, values(table[first], 0), [&](int b, int head, const char *next) {
            const TK *found = readable(keys_of(table[b], head), next);
            score_queries(found, b * block_tokens, {head * group, (head + 1) * group}, next, nullptr);
        });
        for (int head = 0; head < n_heads; ++head) {
            for (int b = first; b < n; ++b) values_[b] = values_of(table[b], head); // weigh() reads their scales
            for (int i = head * group; i < (head + 1) * group; ++i) weigh(i);
        }
        each(values, after(step, n_), [&](int b, int head, const char *next) {
            values_[b] = readable(values_of(table[b], head), b, next);
            const int begin = b * block_tokens, end = begin + block_tokens;
            const Range some{seen.begin > begin ? seen.begin : begin, seen.end < end ? seen.end : end};
            add_block(piece_of(some, next, true), {head * group, (head + 1) * group}, b == first);
        });
    }

    typename V::Piece piece_of(Range tokens, const char *next, bool ahead) const {
        typename V::Piece piece{values_, shape_.v_head_dim, tokens.begin, tokens.end, next, ahead};
        if constexpr (widens_values) piece.has_smallest = shape_.v_type == KvType::q5_1;
        return piece;
    }

    // Add the values of one block for queries that all see the same tokens of it.
    void add_block(typename V::Piece piece, Range queries, bool is_first) {
        constexpr float ones[] = {1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F,
                                  1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F, 1.0F};
        static_assert(V::most_queries <= 16);
        in_groups<V::most_queries>(queries, [&]<int n>(int i) {
            add_piece<n>(piece, i, is_first ? rescale_ + i : ones);
            piece.ahead = false;
        });
    }

    // Call act for groups of queries as large as the registers allow.
    template <int most, class Act> static void in_groups(Range queries, Act act) {
        int i = queries.begin;
        for (; i + most <= queries.end; i += most) act.template operator()<most>(i);
        if constexpr (most > 4) {
            for (; i + 4 <= queries.end; i += 4) act.template operator()<4>(i);
        }
        for (; i + 2 <= queries.end; i += 2) act.template operator()<2>(i);
        for (; i < queries.end; ++i) act.template operator()<1>(i);
    }

    // One step of queries [first, end), which read the same blocks.
    void attend(int step, int first, int end) {
        // The last row sees every block that the rows before it see.
        const int n = steps_.n_blocks(end - 1, step);
        const int32_t *table = tile_.queries[end - 1].table + step * kv_step_blocks;
        int seen_begin = step_tokens;
        for (int i = first; i < end; ++i) {
            seen_[i] = steps_.seen(i, step);
            if (seen_[i].begin < seen_begin) seen_begin = seen_[i].begin;
        }
        for (int b = 0; b < n; ++b) {
            values_[b] = shape_.v_in_k ? own_values(b) : values_of(table[b]);
            if (!shape_.v_in_k) ask_for_scales_of(values_[b]);
        }
        const int first_block = widens_keys || widens_values ? seen_begin / block_tokens : 0;
        const void *later = shape_.v_in_k ? after(step, end) : static_cast<const void *>(values_of(table[first_block]));
        for (int b = first_block; b < n; ++b) {
            const void *next = b + 1 < n ? static_cast<const void *>(keys_of(table[b + 1])) : later;
            const TK *keys = readable(keys_of(table[b]), next);
            score_block(keys, b * block_tokens, {first, end}, static_cast<const char *>(next),
                        shape_.v_in_k ? static_cast<const void *>(keys) : values_[b]);
            if (shape_.v_in_k) take_values(keys, b);
        }
        if (widens_values && !shape_.v_in_k) {
            for (int b = first_block; b < n; ++b) {
                const void *next = b + 1 < n ? values_of(table[b + 1]) : static_cast<const void *>(after(step, end));
                values_[b] = readable(values_of(table[b]), b, next);
            }
        }
        for (int i = first; i < end; ++i) weigh(i);
        if constexpr (V::arranges) {
            is_arranged_ = shape_.v_in_k || end - first >= V::most_queries;
            if (is_arranged_ && !shape_.v_in_k) {
                // If sequences share blocks and there is a window, a later query may see earlier tokens.
                Range seen = seen_[first];
                for (int i = first + 1; i < end; ++i) {
                    if (seen_[i].begin < seen.begin) seen.begin = seen_[i].begin;
                    if (seen_[i].end > seen.end) seen.end = seen_[i].end;
                }
                V::arrange({values_, shape_.v_head_dim, seen.begin, seen.end, after(step, end), false}, arranged_);
            }
        }
        add_values(first, end, after(step, end));
    }

    // Copy the values of a block out of its keys, if they are part of them.
    void take_values([[maybe_unused]] const TK *keys, [[maybe_unused]] int b) {
        if constexpr (!std::is_same_v<TK, TV>) {
            // K and V have one type here.
        } else if constexpr (V::arranges) {
            V::arrange_keys(keys, shape_.v_head_dim, b, arranged_);
        } else if constexpr (widens_values) {
            copy_wide_values_of_keys(wide_keys_, shape_.head_dim, shape_.v_head_dim,
                                     reinterpret_cast<int8_t *>(own_values(b)));
        } else {
            copy_values_of_keys(keys, shape_.head_dim, shape_.v_head_dim, own_values(b));
        }
    }

    // Score all tokens of a block, even invisible ones, which weigh() overwrites.
    void score_block(const TK *keys, int t, Range queries, const char *next, const void *values) {
        auto touches = [&](int i) { return seen_[i].begin < t + block_tokens && seen_[i].end > t; };
        while (!queries.is_empty() && !touches(queries.begin)) ++queries.begin;
        while (!queries.is_empty() && !touches(queries.end - 1)) --queries.end;
        score_queries(keys, t, queries, next, values);
    }

    void score_queries(const TK *keys, int t, Range queries, const char *next, const void *values) {
        in_groups<K::most_queries>(queries, [&]<int n>(int i) {
            // The first group prefetches the next keys, the second one the values to be rearranged.
            const bool is_first = i == queries.begin, is_second = V::arranges && i == queries.begin + K::most_queries;
            const char *asked = is_first ? next : static_cast<const char *>(values);
            K::template score<n>(queries_, i, {keys, asked, is_first || is_second}, scores_ + i * step_tokens + t);
        });
    }

    // Turn the scores of one query into weights relative to its largest score so far.
    void weigh(int i) {
        const Range seen = seen_[i];
        if (seen == Range{0, step_tokens}) return weigh(i, Range{0, step_tokens}); // a length known at compile time
        weigh(i, seen);
    }

    [[gnu::always_inline]] void weigh(int i, Range seen) {
        float *scores = scores_ + i * step_tokens;
        constexpr int together = V::weighed_together;
        const int from = seen.begin / together * together, to = (seen.end + together - 1) / together * together;
        if (shape_.soft_cap != 0.0F) {
            const Vec cap = L::set(shape_.soft_cap * log2_e), inverse = L::set(1.0F / shape_.soft_cap);
            for (int t = from; t < to; t += width)
                L::store(scores + t, L::mul(cap, hyperbolic_tangent<L>(L::mul(inverse, L::load(scores + t)))));
        }
        if (tile_.queries[i].bias.columns != nullptr)
            add_bias(tile_.queries[i], step_ * step_tokens, scores, {from, to});
        for (int t = from; t < seen.begin; ++t) scores[t] = -infinity;
        for (int t = seen.end; t < to; ++t) scores[t] = -infinity;
        Vec highest = L::load(scores + from);
#pragma GCC unroll 8
        for (int t = from + width; t < to; t += width) highest = L::max(highest, L::load(scores + t));
        const float before = states_.largest(i), now = L::largest(highest);
        const float largest = now > before ? now : before;
        rescale_[i] = largest == before ? 1.0F : L::first(exponential2<L>(L::set(before - largest)));
        states_.largest(i) = largest;
        const float sum = V::weigh(values_, shape_.v_head_dim, scores, from, to, largest);
        states_.total(i) = states_.total(i) * rescale_[i] + sum;
    }

    void add_values(int first, int end, const char *next) {
        in_groups<V::most_queries>({first, end}, [&]<int n>(int i) { add_group<n>(i, next, i == first); });
    }

    // Add values for n queries: together for tokens that all of them see, one by one for those before and after.
    template <int n> void add_group(int first, const char *next, bool ahead) {
        Range common = seen_[first];
        bool is_ragged = false;
        for (int i = first + 1; i < first + n; ++i) {
            is_ragged = is_ragged || seen_[i] != seen_[first];
            if (seen_[i].begin > common.begin) common.begin = seen_[i].begin;
            if (seen_[i].end < common.end) common.end = seen_[i].end;
        }
        if (is_ragged) { // whole pairs if tokens are added in pairs
            common.begin = (common.begin + V::together - 1) / V::together * V::together;
            common.end = common.end / V::together * V::together;
        }
        float rescale[n];
        __builtin_memcpy(rescale, rescale_ + first, sizeof rescale);
        const float ones[] = {1.0F};
        typename V::Piece piece = piece_of({0, 0}, next, ahead);
        if constexpr (V::arranges) {
            piece.is_arranged_alone = shape_.v_in_k;
            piece.arranged = shape_.v_in_k ? arranged_ : nullptr;
        }
        auto one_by_one = [&](auto range_of) {
            for (int i = 0; i < n; ++i) {
                const Range range = range_of(seen_[first + i]);
                if (range.is_empty()) continue;
                piece.begin = range.begin;
                piece.end = range.end;
                add_piece<1>(piece, first + i, rescale + i);
                rescale[i] = ones[0];
            }
        };
        if (is_ragged && common.is_empty()) return one_by_one([](Range seen) { return seen; });
        if (is_ragged) one_by_one([&](Range seen) { return Range{seen.begin, common.begin}; });
        piece.begin = common.begin;
        piece.end = common.end;
        if constexpr (V::arranges) piece.arranged = is_arranged_ ? arranged_ : nullptr;
        add_piece<n>(piece, first, rescale);
        for (float &each : rescale) each = ones[0];
        if constexpr (V::arranges) piece.arranged = piece.is_arranged_alone ? arranged_ : nullptr;
        if (is_ragged) one_by_one([&](Range seen) { return Range{common.end, seen.end}; });
    }

    template <int n> void add_piece(const typename V::Piece &piece, int first, const float *rescale) {
        V::template add<n>(piece, scores_ + first * step_tokens, rescale, states_.sums(first), states_.stride());
    }

    const AttentionTile &tile_;
    const AttentionShape &shape_;
    TileSteps<kv_step_blocks> steps_;
    int n_, step_ = 0; // the current step
    Queries queries_;
    QueryStates<L> states_;
    float *scores_; // scores of the current step
    int64_t key_elements_, value_elements_; // per block and head
    float rescale_[max_tile_queries]; // factors for the sums of earlier steps
    Range seen_[max_tile_queries];
    const TV *values_[kv_step_blocks];
    // The values of the current step, rearranged if many queries read them.
    TV *arranged_;
    bool is_arranged_ = false;
    // The values of a step, copied out of the keys in the layout of a V pool, or widened.
    TV *own_values_;
    int8_t *wide_keys_; // keys of one block
};

// V of F16 or fewer bits, to go with such K.
template <class L, class TK> void attend_keys(const AttentionTile &tile) {
    switch (tile.shape->v_type) {
    case KvType::q8: TileAttention<L, TK, int8_t>(tile).run(); break;
    case KvType::q5_1:
    case KvType::q4_0: TileAttention<L, TK, LowBits>(tile).run(); break;
    default: TileAttention<L, TK, typename L::F16>(tile).run();
    }
}

// K of 8 bits or fewer.
template <class L> void attend_codes(const AttentionTile &tile) {
    tile.shape->k_type == KvType::q8 ? attend_keys<L, int8_t>(tile) : attend_keys<L, LowBits>(tile);
}

template <class L> void attend_tile(const AttentionTile &tile) {
    switch (tile.shape->k_type) {
    case KvType::f32: TileAttention<L, float>(tile).run(); break;
    case KvType::bf16: TileAttention<L, typename L::Bf16>(tile).run(); break;
    case KvType::f16: attend_keys<L, typename L::F16>(tile); break;
    default: attend_codes<L>(tile);
    }
}

} // namespace
} // namespace quire
