// The attention of a tile of queries with a BF16 cache, by products of tiles.  As in attention_tile.h, softmax takes
// one pass over each chunk, but with longer steps.  Queries go through a step 32 at a time: their data stays in the
// first-level cache, and K and V of the step, arranged for products, stay in the second-level cache.
//
// Columns of products are in the order of interleave() (column_pairs.h): the tokens of a block in scores and weights,
// and 32 dimensions at a time in sums, until a chunk ends.
#pragma once

#include "kernels/avx512amx/arranged_blocks.h"
#include "kernels/avx512amx/query_tiles.h"
#include "kernels/avx512amx/query_weights.h"
#include "kernels/avx512amx/tile_states.h"

namespace quire {
namespace {

static_assert(kv_chunk_tokens % long_step == 0);
constexpr int group_queries = 32;
constexpr int score_stride = long_step + lanes; // padded, so that rows do not all begin in one cache set
constexpr int strip_dims = 64; // dimensions of V arranged at a time

// Not std::min, which has external linkage: see attention_kernels.h.
inline int smaller(int a, int b) { return a < b ? a : b; }
inline int larger(int a, int b) { return a > b ? a : b; }

inline int64_t query_attention_floats(const AttentionShape &shape) {
    const int64_t dim = whole_strips(shape.head_dim), v_dim = whole_strips(shape.v_head_dim);
    const int64_t of_queries = max_tile_queries * (dim / 2 + 2 * v_dim) + 2 * group_queries * score_stride;
    return of_queries + long_step / 2 * (dim + v_dim + strip_dims) + v_dim;
}

template <class Tiles> class QueryAttention {
  public:
    explicit QueryAttention(const AttentionTile &tile)
        : tile_(tile), shape_(*tile.shape), steps_(tile), n_(tile.n_queries), dim_(whole_strips(shape_.head_dim)),
          states_(tile, tile.scratch), scores_(states_.end()),
          queries_(reinterpret_cast<uint16_t *>(scores_ + 2 * group_queries * score_stride)),
          keys_(queries_ + n_ * dim_), values_(keys_ + long_step * dim_), own_(values_ + long_step * states_.stride()),
          is_sound_(reinterpret_cast<bool *>(own_ + long_step * strip_dims)) {}

    void run() {
        const float factor = shape_.soft_cap == 0.0F ? shape_.scale * log2_e : shape_.scale;
        for (int i = 0; i < n_; ++i) prepare(i, factor);
        for (int chunk = tile_.first_chunk; chunk < tile_.last_chunk; ++chunk) {
            states_.begin_chunk();
            const int begin = chunk * kv_chunk_tokens, end = begin + kv_chunk_tokens;
            for (int step = begin / long_step; step < end / long_step; ++step) visit_step(step);
            states_.end_chunk(chunk);
        }
        if (tile_.partials == nullptr) states_.write_results();
    }

  private:
    // The queries that share blocks in a step, and the tokens that any of them sees.
    struct Run {
        Range queries, seen;
        const int32_t *table; // from the step's first block on
        int head; // one of the tile's
        bool is_ragged; // not all see the same tokens
        bool several; // the step has several groups of queries
    };
    struct Group {
        int first, n;
        Range blocks; // seen by any of them
        bool is_fresh; // no sums yet
        float *scores; // then weights
        int n_weighed;
        Range tokens() const { return {blocks.begin * block_tokens, blocks.end * block_tokens}; }
    };

    // Pads to whole tiles with zeros.
    void prepare(int i, float factor) {
        const float *q = tile_.queries[i].q;
        for (int d = 0; d < dim_; d += lanes) {
            const int left = shape_.head_dim - d;
            const __m512 x = left >= lanes ? Lanes::load(q + d)
                             : left > 0    ? Lanes::load_part(q + d, left)
                                           : Lanes::set(0.0F);
            _mm256_storeu_si256(reinterpret_cast<__m256i *>(queries_ + i * dim_ + d),
                                to_bf16_lanes(Lanes::mul(x, Lanes::set(factor))));
        }
    }

    void visit_step(int step) {
        step_ = step;
        if (tile_.n_kv_heads == 1) return steps_.each_run(step, [&](Range run) { attend(step, run, 0); });
        const int each = n_ / tile_.n_kv_heads;
        for (int head = 0; head < tile_.n_kv_heads && steps_.sees(0, step); ++head)
            attend(step, {head * each, (head + 1) * each}, head);
    }

    const uint16_t *keys_of(int32_t block, int head) const {
        const int64_t at = static_cast<int64_t>(block) * shape_.n_kv_head + tile_.kv_head + head;
        return static_cast<const uint16_t *>(tile_.k_pool) + at * block_tokens * shape_.head_dim;
    }
    const uint16_t *values_of(int32_t block, int head) const {
        const int64_t at = static_cast<int64_t>(block) * shape_.n_kv_head + tile_.kv_head + head;
        return static_cast<const uint16_t *>(tile_.v_pool) + at * block_tokens * shape_.v_head_dim;
    }

    // Lists the memory to prefetch: the values of this run and the keys read after it.
    void find_ahead(int step, const Run &run) {
        const int64_t k_size = int64_t{block_tokens} * shape_.head_dim,
                      v_size = int64_t{block_tokens} * shape_.v_head_dim;
        ahead_.clear();
        for (int b = run.seen.begin / block_tokens; !shape_.v_in_k && b * block_tokens < run.seen.end; ++b)
            ahead_.add(values_of(run.table[b], run.head), v_size);
        const bool next_head = run.head + 1 < tile_.n_kv_heads;
        const bool next_run = !next_head && run.queries.end < n_ && steps_.sees(run.queries.end, step);
        const TileQuery &query = tile_.queries[next_run ? run.queries.end : 0];
        const int first = (next_head || next_run ? step : step + 1) * long_step_blocks;
        const int end = smaller(query.newest / block_tokens + 1, tile_.last_chunk * (kv_chunk_tokens / block_tokens));
        for (int b = first; b < first + long_step_blocks && b < end; ++b)
            ahead_.add(keys_of(query.table[b], next_head ? run.head + 1 : 0), k_size);
        // One group prefetches half of it while blocks are arranged; several prefetch all of it during the products.
        const int n_blocks = (run.seen.end + block_tokens - 1) / block_tokens - run.seen.begin / block_tokens;
        const int k_steps = n_blocks * static_cast<int>(dim_ / pair_columns);
        const int v_steps = n_blocks * static_cast<int>((states_.stride() + strip_dims - 1) / strip_dims);
        if (run.several) {
            const int n_groups = (run.queries.end - run.queries.begin + group_queries - 1) / group_queries;
            lines_with_keys_ = lines_with_values_ = 0;
            lines_a_key_step_ = lines_a_value_step_ = ahead_.lines() / (n_groups * (k_steps + 2 * v_steps)) + 1;
        } else {
            const int lines = ahead_.lines() / 4;
            lines_a_key_step_ = lines / k_steps + 1;
            lines_with_keys_ = lines / (k_steps * 16) + 1;
            lines_a_value_step_ = lines / v_steps + 1;
            lines_with_values_ = lines / (v_steps * 16) + 1;
        }
    }

    // Attends for the queries of one step that read the same blocks.
    void attend(int step, Range queries, int head) {
        Run run{queries, steps_.seen(queries.begin, step),           nullptr, head,
                false,   queries.end - queries.begin > group_queries};
        int longest = queries.begin;
        for (int i = queries.begin; i < queries.end; ++i) {
            const Range seen = steps_.seen(i, step);
            run.is_ragged = run.is_ragged || seen != run.seen;
            if (seen.end > run.seen.end) longest = i;
            run.seen = {smaller(seen.begin, run.seen.begin), larger(seen.end, run.seen.end)};
            seen_[i] = seen;
        }
        run.table = tile_.queries[longest].table + step * long_step_blocks;
        find_ahead(step, run);
        is_arranged_ = 0;
        // A group's weights are computed while the next group's scores are multiplied.
        Group group = group_from(run, queries.begin);
        Tiles::set_rows(group.n);
        score(run, group, nullptr);
        for (;;) {
            begin_sums(group);
            const bool is_last = group.first + group.n == queries.end;
            Group next = is_last ? group : group_from(run, group.first + group.n);
            if (!is_last) {
                Tiles::set_rows(next.n);
                score(run, next, &group);
            }
            while (group.n_weighed < group.n) weigh_next(group);
            Tiles::set_rows(group.n);
            for (int64_t d = 0; d < states_.stride(); d += strip_dims) {
                states_.stride() - d < strip_dims ? add_strip<2>(run, group, d) : add_strip<4>(run, group, d);
            }
            if (is_last) break;
            group = next;
        }
        ahead_.ask(ahead_.lines());
    }

    Group group_from(const Run &run, int first) {
        Group group{first, smaller(group_queries, run.queries.end - first), {long_step_blocks, 0}, false, scores_, 0};
        if ((first - run.queries.begin) / group_queries % 2 != 0) group.scores += group_queries * score_stride;
        for (int i = first; i < first + group.n; ++i) {
            group.blocks.begin = smaller(group.blocks.begin, seen_[i].begin / block_tokens);
            group.blocks.end = larger(group.blocks.end, (seen_[i].end + block_tokens - 1) / block_tokens);
        }
        return group;
    }

    // Sets is_fresh if all sums of the group start here.  If only some do, those are set to zero.
    void begin_sums(Group &group) {
        int n_begun = 0;
        for (int i = group.first; i < group.first + group.n; ++i) n_begun += states_.has_sums(i) ? 1 : 0;
        group.is_fresh = n_begun == 0;
        for (int i = group.first; i < group.first + group.n; ++i) {
            if (!group.is_fresh && !states_.has_sums(i))
                std::memset(states_.sums(i), 0, static_cast<size_t>(states_.stride()) * sizeof(float));
            states_.has_sums(i) = true;
        }
    }

    // Arranges a block's keys while the keys of the previous block are multiplied.
    void score(const Run &run, const Group &group, Group *before) {
        arrange_block(run, group.blocks.begin);
        for (int b = group.blocks.begin; b < group.blocks.end; ++b) {
            if (b + 1 < group.blocks.end) arrange_block(run, b + 1);
            const TileProducts products{queries_ + group.first * dim_,
                                        dim_ * 2,
                                        arranged_keys(run, b),
                                        128,
                                        64,
                                        16 * 128,
                                        dim_ / pair_columns,
                                        group.scores + b * block_tokens,
                                        score_stride * int64_t{sizeof(float)}};
            Tiles::template add<2, true>(products, [&]() __attribute__((always_inline)) {
                ahead_.ask(lines_a_key_step_);
                if (before != nullptr && before->n_weighed < before->n) weigh_next(*before);
            });
        }
    }

    uint16_t *arranged_keys(const Run &run, int b) { return keys_ + (run.several ? b : b % 2) * block_tokens * dim_; }

    // Done once for all groups.
    void arrange_block(const Run &run, int b) {
        if ((is_arranged_ >> b & 1U) != 0) return;
        is_arranged_ |= 1U << b;
        arrange_keys(keys_of(run.table[b], run.head), shape_.head_dim, dim_, arranged_keys(run, b),
                     [&]() __attribute__((always_inline)) { ahead_.ask(lines_with_keys_); });
    }

    // Turns a query's scores into weights relative to its largest score so far.
    [[gnu::noinline]] void weigh_next(Group &group) {
        const int i = group.first + group.n_weighed;
        float *scores = group.scores + group.n_weighed * score_stride;
        ++group.n_weighed;
        const Range tokens = group.tokens();
        if (shape_.soft_cap != 0.0F) cap_scores(scores, tokens, shape_.soft_cap);
        if (tile_.queries[i].bias.columns != nullptr)
            add_block_bias(tile_.queries[i], step_ * long_step, scores, tokens);
        if (seen_[i] != tokens) hide_unseen(scores, tokens, seen_[i]);
        const float before = states_.largest(i), now = largest_score(scores, tokens);
        if (now > before) {
            states_.largest(i) = now;
            if (before != -infinity && !group.is_fresh) {
                const float factor = Lanes::first(exponential2<Lanes>(Lanes::set(before - now)));
                states_.total(i) *= factor;
                float *sums = states_.sums(i);
                for (int64_t d = 0; d < states_.stride(); d += lanes)
                    Lanes::store(sums + d, Lanes::mul(Lanes::load(sums + d), Lanes::set(factor)));
            }
        }
        states_.total(i) += weigh_scores<Tiles>(scores, tokens.begin, tokens.end, states_.largest(i));
    }

    // Adds to the sums of 16 n dimensions from d on.
    template <int n> void add_strip(const Run &run, const Group &group, int64_t d) {
        uint16_t *values = run.several ? values_ + d * long_step : values_;
        bool &is_sound = is_sound_[d / strip_dims];
        if (group.first == run.queries.begin) is_sound = arrange_strip<n>(run, run.seen, d, values, run.is_ragged);
        float *sums = states_.sums(group.first) + d;
        if (is_sound) return add_values<n>(group.blocks, group.is_fresh, group.scores, values, sums);
        // Invisible tokens have weight zero, but zero times a value that is not finite is not zero.
        Tiles::set_rows(1);
        for (int i = group.first; i < group.first + group.n; ++i) {
            arrange_strip<n>(run, seen_[i], d, own_, false);
            const Range blocks{seen_[i].begin / block_tokens, (seen_[i].end + block_tokens - 1) / block_tokens};
            add_values<n>(blocks, group.is_fresh, group.scores + (i - group.first) * score_stride, own_,
                          states_.sums(i) + d);
        }
        Tiles::set_rows(group.n);
    }

    template <int n>
    void add_values(Range blocks, bool is_fresh, const float *weights, const uint16_t *values, float *sums) {
        const TileProducts products{reinterpret_cast<const uint16_t *>(weights) + blocks.begin * block_tokens,
                                    score_stride * int64_t{sizeof(float)},
                                    values + blocks.begin * 16 * n * 32,
                                    n * 64,
                                    64,
                                    16 * n * 64,
                                    blocks.end - blocks.begin,
                                    sums,
                                    states_.stride() * int64_t{sizeof(float)}};
        auto ask = [&]() __attribute__((always_inline)) { ahead_.ask(lines_a_value_step_); };
        is_fresh ? Tiles::template add<n, true>(products, ask) : Tiles::template add<n, false>(products, ask);
    }

    // Arranges the dimensions from d on of these tokens' blocks.  If `asked`, returns true if all values are finite.
    template <int n> bool arrange_strip(const Run &run, Range tokens, int64_t d, uint16_t *to, bool asked) {
        __mmask32 strange = 0;
        for (int b = tokens.begin / block_tokens; b * block_tokens < tokens.end; ++b) {
            const int first = b * block_tokens;
            const Range seen{tokens.begin - first, tokens.end - first};
            auto ask = [&]() __attribute__((always_inline)) { ahead_.ask(lines_with_values_); };
            if (shape_.v_in_k) {
                arrange_values_of_keys<n>(keys_of(run.table[b], run.head), shape_.v_head_dim, d, seen,
                                          to + first * 16 * n, asked, strange, ask);
                continue;
            }
            arrange_values<n>(values_of(run.table[b], run.head), shape_.v_head_dim, d, seen, to + first * 16 * n, asked,
                              strange, ask);
        }
        return strange == 0;
    }

    const AttentionTile &tile_;
    const AttentionShape &shape_;
    TileSteps<long_step_blocks> steps_;
    int n_, step_ = 0; // the current step
    int64_t dim_; // dimensions of a query, padded to whole tiles
    TileStates states_;
    float *scores_; // scores of the current group
    uint16_t *queries_; // times the factor
    // K and V of a step, arranged.  With one group of queries they hold two blocks and one strip only.
    uint16_t *keys_, *values_, *own_;
    bool *is_sound_; // per strip: all values that some queries do not see are finite
    uint32_t is_arranged_ = 0; // bit per block: its keys are arranged
    PrefetchList ahead_;
    int lines_a_key_step_ = 0, lines_with_keys_ = 0, lines_a_value_step_ = 0, lines_with_values_ = 0;
    Range seen_[max_tile_queries];
};

} // namespace
} // namespace quire
