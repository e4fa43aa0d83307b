// The attention of a tile of queries to a BF16 cache, by products of tiles.  As in attention_tile.h softmax is taken in one
// pass over chunks, but in longer steps, and queries go through a step 32 at a time: what belongs to those stays in the
// first-level cache, K and V of the step arranged for products in the second-level one.
//
// Columns of products are in the order of interleave() (column_pairs.h): tokens of a block in scores and weights, 32
// dimensions in sums until they leave a chunk.
#pragma once

#include "kernels/avx512amx/query_tiles.h"
#include "kernels/avx512amx/query_weights.h"

namespace quire {
namespace {

constexpr int long_step_blocks = 8, long_step = long_step_blocks * block_tokens;
static_assert(kv_chunk_tokens % long_step == 0);
constexpr int group_queries = 32;
constexpr int score_stride = long_step + lanes; // whose rows' beginnings are not all in one set of the cache
constexpr int strip_dims = 64; // of V that are arranged at a time

// Not the library's: see attention_kernels.h.
inline int smaller(int a, int b) { return a < b ? a : b; }
inline int larger(int a, int b) { return a > b ? a : b; }

inline int64_t query_attention_floats(const AttentionShape &shape) {
    const int64_t dim = whole_strips(shape.head_dim), v_dim = whole_strips(shape.v_head_dim);
    const int64_t of_queries = max_tile_queries * (dim / 2 + 2 * v_dim) + 2 * group_queries * score_stride;
    return of_queries + long_step / 2 * (dim + v_dim + strip_dims) + v_dim;
}

// Memory to be asked for while there is other work: little by little, as the processor has few buffers for lines that are
// under way, and blocks lie anywhere, so that it does not foresee them.
class Ahead {
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
            __builtin_prefetch(piece.at, 0, 2);
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

template <class Tiles> class QueryAttention {
  public:
    explicit QueryAttention(const AttentionTile &tile)
        : tile_(tile), shape_(*tile.shape), n_(tile.n_queries), dim_(whole_strips(shape_.head_dim)),
          sum_stride_(whole_strips(shape_.v_head_dim)), sums_(tile.scratch), merged_(sums_ + n_ * sum_stride_),
          scores_(merged_ + n_ * sum_stride_),
          queries_(reinterpret_cast<uint16_t *>(scores_ + 2 * group_queries * score_stride)),
          keys_(queries_ + n_ * dim_), values_(keys_ + long_step * dim_), own_(values_ + long_step * sum_stride_),
          is_sound_(reinterpret_cast<bool *>(own_ + long_step * strip_dims)) {}

    void run() {
        const float factor = shape_.soft_cap == 0.0F ? shape_.scale * log2_e : shape_.scale;
        for (int i = 0; i < n_; ++i) {
            prepare(i, factor);
            is_started_[i] = false;
        }
        for (int chunk = tile_.first_chunk; chunk < tile_.last_chunk; ++chunk) visit_chunk(chunk);
        if (tile_.partials != nullptr) return;
        for (int i = 0; i < n_; ++i) {
            put_in_order(merged_ + i * sum_stride_);
            write_result<Lanes>(tile_.queries[i], merged(i), shape_.v_head_dim);
        }
    }

  private:
    // Of a query in a step: those who share its blocks, and what they see of them.
    struct Run {
        Range queries, seen; // of any of them
        const int32_t *table; // from the step's first block on
        int head; // of the tile's
        bool is_ragged; // some see other tokens than others
        bool several; // groups of queries
    };
    struct Group {
        int first, n;
        Range blocks; // that any of them sees
        bool is_fresh; // no sums yet
        float *scores; // then weights
        int n_weighed;
        Range tokens() const { return {blocks.begin * block_tokens, blocks.end * block_tokens}; }
    };

    SoftmaxState state(int i) { return {largest_ + i, total_ + i, sums_ + i * sum_stride_}; }
    SoftmaxState merged(int i) { return {merged_largest_ + i, merged_total_ + i, merged_ + i * sum_stride_}; }

    // Up to whole tiles, with zeros.
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

    void visit_chunk(int chunk) {
        const int begin = chunk * kv_chunk_tokens, end = begin + kv_chunk_tokens;
        for (int i = 0; i < n_; ++i) {
            largest_[i] = -infinity;
            total_[i] = 0.0F;
            has_sums_[i] = false;
        }
        for (int step = begin / long_step; step < end / long_step; ++step) visit_step(step);
        for (int i = 0; i < n_; ++i) {
            if (!sees(shape_, tile_.queries[i].position, begin, end)) continue;
            if (tile_.partials != nullptr) {
                const int64_t at = static_cast<int64_t>(chunk - tile_.first_chunk) * n_ + i;
                keep(i, tile_.partials + at * partial_floats(shape_));
            } else if (is_started_[i]) {
                merge_state<Lanes>(merged(i), state(i), static_cast<int>(sum_stride_));
            } else {
                is_started_[i] = true;
                merged_largest_[i] = largest_[i];
                merged_total_[i] = total_[i];
                std::memcpy(merged_ + i * sum_stride_, sums_ + i * sum_stride_,
                            static_cast<size_t>(sum_stride_) * sizeof(float));
            }
        }
    }

    void put_in_order(float *sums) {
        for (int64_t d = 0; d < sum_stride_; d += 2 * lanes) {
            const __m512 two[] = {_mm512_loadu_ps(sums + d), _mm512_loadu_ps(sums + d + lanes)};
            store_sums(two, sums + d);
        }
    }

    void keep(int i, float *partial) {
        const int n = padded_floats(shape_.v_head_dim);
        put_in_order(sums_ + i * sum_stride_);
        std::memcpy(partial, sums_ + i * sum_stride_, static_cast<size_t>(n) * sizeof(float));
        partial[n] = largest_[i];
        partial[n + 1] = total_[i];
    }

    // Visible blocks of a step.
    int n_blocks(int i, int step) const {
        const int n = tile_.queries[i].position / block_tokens + 1 - step * long_step_blocks;
        return n < long_step_blocks ? n : long_step_blocks;
    }

    bool sees_step(int i, int step) const {
        return sees(shape_, tile_.queries[i].position, step * long_step, (step + 1) * long_step);
    }

    // Whether query i and its neighbour before it may read the same memory in a step that both see.
    bool shares(int i, int step) const {
        const TileQuery &one = tile_.queries[i - 1], &other = tile_.queries[i];
        if (one.table == other.table) return true;
        const int n = n_blocks(i - 1, step), first = step * long_step_blocks;
        return n_blocks(i, step) == n &&
               std::memcmp(one.table + first, other.table + first, static_cast<size_t>(n) * sizeof(int32_t)) == 0;
    }

    void visit_step(int step) {
        if (tile_.n_kv_heads > 1) {
            const int each = n_ / tile_.n_kv_heads;
            for (int head = 0; head < tile_.n_kv_heads && sees_step(0, step); ++head)
                attend(step, {head * each, (head + 1) * each}, head);
            return;
        }
        for (int i = 0; i < n_;) {
            int end = i + 1;
            if (sees_step(i, step)) {
                while (end < n_ && sees_step(end, step) && shares(end, step)) ++end;
                attend(step, {i, end}, 0);
            }
            i = end;
        }
    }

    const uint16_t *keys_of(int32_t block, int head) const {
        const int64_t at = static_cast<int64_t>(block) * shape_.n_kv_head + tile_.kv_head + head;
        return static_cast<const uint16_t *>(tile_.k_pool) + at * block_tokens * shape_.head_dim;
    }
    const uint16_t *values_of(int32_t block, int head) const {
        const int64_t at = static_cast<int64_t>(block) * shape_.n_kv_head + tile_.kv_head + head;
        return static_cast<const uint16_t *>(tile_.v_pool) + at * block_tokens * shape_.v_head_dim;
    }

    Range seen_of(int i, int step) const {
        const int position = tile_.queries[i].position - step * long_step;
        const int oldest = oldest_seen(shape_, tile_.queries[i].position) - step * long_step;
        return {oldest > 0 ? oldest : 0, position + 1 < long_step ? position + 1 : long_step};
    }

    // Values of this run, and the keys that are read after it.
    void find_ahead(int step, const Run &run) {
        const int64_t k_size = int64_t{block_tokens} * shape_.head_dim,
                      v_size = int64_t{block_tokens} * shape_.v_head_dim;
        ahead_.clear();
        for (int b = run.seen.begin / block_tokens; b * block_tokens < run.seen.end; ++b)
            ahead_.add(values_of(run.table[b], run.head), v_size);
        const bool next_head = run.head + 1 < tile_.n_kv_heads;
        const bool next_run = !next_head && run.queries.end < n_ && sees_step(run.queries.end, step);
        const TileQuery &query = tile_.queries[next_run ? run.queries.end : 0];
        const int first = (next_head || next_run ? step : step + 1) * long_step_blocks;
        const int end = smaller(query.position / block_tokens + 1, tile_.last_chunk * (kv_chunk_tokens / block_tokens));
        for (int b = first; b < first + long_step_blocks && b < end; ++b)
            ahead_.add(keys_of(query.table[b], next_head ? run.head + 1 : 0), k_size);
        // Half of it while there is one group's arranging to do, else all of it while products are computed.
        const int n_blocks = (run.seen.end + block_tokens - 1) / block_tokens - run.seen.begin / block_tokens;
        const int k_steps = n_blocks * static_cast<int>(dim_ / pair_columns);
        const int v_steps = n_blocks * static_cast<int>((sum_stride_ + strip_dims - 1) / strip_dims);
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

    // Queries of one step that read the same blocks.
    void attend(int step, Range queries, int head) {
        Run run{
            queries, seen_of(queries.begin, step), nullptr, head, false, queries.end - queries.begin > group_queries};
        int longest = queries.begin;
        for (int i = queries.begin; i < queries.end; ++i) {
            const Range seen = seen_of(i, step);
            run.is_ragged = run.is_ragged || seen != run.seen;
            if (seen.end > run.seen.end) longest = i;
            run.seen = {smaller(seen.begin, run.seen.begin), larger(seen.end, run.seen.end)};
            seen_[i] = seen;
        }
        run.table = tile_.queries[longest].table + step * long_step_blocks;
        find_ahead(step, run);
        is_arranged_ = 0;
        // Weights of a group are found while scores of the next one are multiplied.
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
            for (int64_t d = 0; d < sum_stride_; d += strip_dims) {
                sum_stride_ - d < strip_dims ? add_strip<2>(run, group, d) : add_strip<4>(run, group, d);
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

    // Whether the sums of all of a group begin here; those of some become zero.
    void begin_sums(Group &group) {
        int n_begun = 0;
        for (int i = group.first; i < group.first + group.n; ++i) n_begun += has_sums_[i] ? 1 : 0;
        group.is_fresh = n_begun == 0;
        for (int i = group.first; i < group.first + group.n; ++i) {
            if (!group.is_fresh && !has_sums_[i])
                std::memset(sums_ + i * sum_stride_, 0, static_cast<size_t>(sum_stride_) * sizeof(float));
            has_sums_[i] = true;
        }
    }

    // A block's keys are arranged while those of the block before it are multiplied.
    void score(const Run &run, const Group &group, Group *before) {
        arrange_keys(run, group.blocks.begin);
        for (int b = group.blocks.begin; b < group.blocks.end; ++b) {
            if (b + 1 < group.blocks.end) arrange_keys(run, b + 1);
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

    // [dim / 2][32 tokens][2], with zeros up to whole tiles; once for all groups.
    void arrange_keys(const Run &run, int b) {
        if ((is_arranged_ >> b & 1U) != 0) return;
        is_arranged_ |= 1U << b;
        const __m512i zero = _mm512_setzero_si512();
        const uint16_t *from = keys_of(run.table[b], run.head);
        uint16_t *to = arranged_keys(run, b);
        for (int64_t d = 0; d < dim_; d += 2, from += 2 * block_tokens, to += 2 * block_tokens) {
            ahead_.ask(lines_with_keys_);
            __m512i pairs[2];
            interleave(d < shape_.head_dim ? _mm512_loadu_si512(from) : zero,
                       d + 1 < shape_.head_dim ? _mm512_loadu_si512(from + block_tokens) : zero, pairs);
            _mm512_storeu_si512(to, pairs[0]);
            _mm512_storeu_si512(to + block_tokens, pairs[1]);
        }
    }

    // Scores of a query become weights relative to its largest score so far.
    [[gnu::noinline]] void weigh_next(Group &group) {
        const int i = group.first + group.n_weighed;
        float *scores = group.scores + group.n_weighed * score_stride;
        ++group.n_weighed;
        const Range tokens = group.tokens();
        if (shape_.soft_cap != 0.0F) cap_scores(scores, tokens, shape_.soft_cap);
        if (seen_[i] != tokens) hide_unseen(scores, tokens, seen_[i]);
        const float before = largest_[i], now = largest_score(scores, tokens);
        if (now > before) {
            largest_[i] = now;
            if (before != -infinity && !group.is_fresh) {
                const float factor = Lanes::first(exponential2<Lanes>(Lanes::set(before - now)));
                total_[i] *= factor;
                float *sums = sums_ + i * sum_stride_;
                for (int64_t d = 0; d < sum_stride_; d += lanes)
                    Lanes::store(sums + d, Lanes::mul(Lanes::load(sums + d), Lanes::set(factor)));
            }
        }
        total_[i] += weigh_scores<Tiles>(scores, tokens, largest_[i]);
    }

    // Sums of 16 n dimensions from d on.
    template <int n> void add_strip(const Run &run, const Group &group, int64_t d) {
        uint16_t *values = run.several ? values_ + d * long_step : values_;
        bool &is_sound = is_sound_[d / strip_dims];
        if (group.first == run.queries.begin) is_sound = arrange_values<n>(run, run.seen, d, values, run.is_ragged);
        float *sums = sums_ + group.first * sum_stride_ + d;
        if (is_sound) return add_values<n>(group.blocks, group.is_fresh, group.scores, values, sums);
        // What a query does not see has no weight, but no weight makes a value zero that is not finite.
        Tiles::set_rows(1);
        for (int i = group.first; i < group.first + group.n; ++i) {
            arrange_values<n>(run, seen_[i], d, own_, false);
            const Range blocks{seen_[i].begin / block_tokens, (seen_[i].end + block_tokens - 1) / block_tokens};
            add_values<n>(blocks, group.is_fresh, group.scores + (i - group.first) * score_stride, own_,
                          sums_ + i * sum_stride_ + d);
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
                                    sum_stride_ * int64_t{sizeof(float)}};
        auto ask = [&]() __attribute__((always_inline)) { ahead_.ask(lines_a_value_step_); };
        is_fresh ? Tiles::template add<n, true>(products, ask) : Tiles::template add<n, false>(products, ask);
    }

    // [pairs of tokens][16 n dimensions][2] from dimension d on, zeros for other tokens of the blocks.  Whether all of it
    // is finite, if that is asked.
    template <int n> bool arrange_values(const Run &run, Range tokens, int64_t d, uint16_t *to, bool asked) {
        constexpr int64_t pair = n * 32;
        const __m512i exponent = _mm512_set1_epi16(0x7f80);
        const int64_t dim = shape_.v_head_dim;
        const __mmask32 masks[] = {first_of_32(static_cast<int>(dim - d)), first_of_32(static_cast<int>(dim - d - 32))};
        __mmask32 strange = 0;
        for (int b = tokens.begin / block_tokens; b * block_tokens < tokens.end; ++b) {
            const uint16_t *from = values_of(run.table[b], run.head) + d;
            for (int t = 0; t < block_tokens; t += 2, from += 2 * dim) {
                const int token = b * block_tokens + t;
                // Where interleave() leaves this pair's weights.
                uint16_t *at = to + (b * 16 + t / 8 * 2 + t % 4 / 2 + t % 8 / 4 * 8) * pair;
                ahead_.ask(lines_with_values_);
                for (int half = 0; half < n / 2; ++half) {
                    const __mmask32 mask = masks[half];
                    const __m512i even = _mm512_maskz_loadu_epi16(
                        token >= tokens.begin && token < tokens.end ? mask : 0, from + half * 32);
                    const __m512i odd = _mm512_maskz_loadu_epi16(
                        token + 1 >= tokens.begin && token + 1 < tokens.end ? mask : 0, from + dim + half * 32);
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
        return strange == 0;
    }

    const AttentionTile &tile_;
    const AttentionShape &shape_;
    int n_;
    int64_t dim_, sum_stride_; // of a query's dimensions, of its sums: whole tiles
    // By query: the weighted sum of values in this chunk and in those before, and scores of the group at hand.
    float *sums_, *merged_, *scores_;
    uint16_t *queries_; // times the factor
    // Of a step, arranged; where there is one group of queries, of two blocks and one strip only.  Values for one query.
    uint16_t *keys_, *values_, *own_;
    bool *is_sound_; // by strip: all values that some do not see are finite
    uint32_t is_arranged_ = 0; // by block: its keys
    Ahead ahead_;
    int lines_a_key_step_ = 0, lines_with_keys_ = 0, lines_a_value_step_ = 0, lines_with_values_ = 0;
    Range seen_[max_tile_queries];
    bool is_started_[max_tile_queries], has_sums_[max_tile_queries]; // of an earlier chunk, of this one
    float largest_[max_tile_queries], total_[max_tile_queries], merged_largest_[max_tile_queries],
        merged_total_[max_tile_queries];
};

} // namespace
} // namespace quire
