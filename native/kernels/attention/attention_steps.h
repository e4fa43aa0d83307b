// The tokens of each step that the queries of a tile see, and the queries that read the same memory in it.
//
// Each instruction set's file includes this once, after its Lanes; nothing here has external linkage.
#pragma once

#include "kernels/attention/attention_state.h"

namespace quire {
namespace {

// A range [begin, end) of a step's tokens or of a tile's queries.
struct Range {
    int begin, end;
    bool is_empty() const { return begin >= end; }
    bool operator==(const Range &) const = default;
};

// True if a query sees any token of [begin, end), counted from the start of the sequence.
inline bool sees(const TileQuery &query, int begin, int end) { return query.newest >= begin && query.oldest < end; }

// Add the distance bias to the scores, in units of log2, of a step's tokens; `first` is the step's first token.
inline void add_bias(const TileQuery &query, int first, float *scores, Range tokens) {
    const float *columns = query.bias.columns;
    const int shift = first + query.first_column, last = query.bias.n - 1;
    auto within = [&](int t) { return t < tokens.begin ? tokens.begin : t > tokens.end ? tokens.end : t; };
    const int begin = within(-shift), end = within(last - shift);
    const float before = columns[0] * log2_e, after = columns[last] * log2_e;
    for (int t = tokens.begin; t < begin; ++t) scores[t] += before;
    for (int t = begin; t < end; ++t) scores[t] += columns[t + shift] * log2_e;
    for (int t = end; t < tokens.end; ++t) scores[t] += after;
}

// Steps of `step_blocks` blocks each, counted from the start of a sequence; `i` is a query of the tile.
template <int step_blocks> class TileSteps {
    static constexpr int step_tokens = step_blocks * kv_block_tokens;

  public:
    explicit TileSteps(const AttentionTile &tile) : tile_(tile) {}

    // The number of blocks in the step up to the newest visible one.
    int n_blocks(int i, int step) const {
        const int n = tile_.queries[i].newest / kv_block_tokens + 1 - step * step_blocks;
        return n < step_blocks ? n : step_blocks;
    }
    bool sees(int i, int step) const {
        return quire::sees(tile_.queries[i], step * step_tokens, (step + 1) * step_tokens);
    }
    // The visible tokens of the step, if there are any.
    Range seen(int i, int step) const {
        const int newest = tile_.queries[i].newest - step * step_tokens;
        const int oldest = tile_.queries[i].oldest - step * step_tokens;
        return {oldest > 0 ? oldest : 0, newest + 1 < step_tokens ? newest + 1 : step_tokens};
    }

    // Call act(queries) for the queries that see some of the step; neighbours that read the same memory come in one
    // call.
    template <class Act> void each_run(int step, Act act) const {
        for (int i = 0; i < tile_.n_queries;) {
            int end = i + 1;
            if (sees(i, step)) {
                while (end < tile_.n_queries && sees(end, step) && shares(end, step)) ++end;
                act(Range{i, end});
            }
            i = end;
        }
    }

  private:
    // True if query i and the previous one may read the same memory in a step that both see.
    bool shares(int i, int step) const {
        const TileQuery &one = tile_.queries[i - 1], &other = tile_.queries[i];
        if (one.table == other.table) return true;
        const int n = n_blocks(i - 1, step);
        if (n_blocks(i, step) != n) return false;
        for (int b = step * step_blocks; b < step * step_blocks + n; ++b) {
            if (one.table[b] != other.table[b]) return false;
        }
        return true;
    }

    const AttentionTile &tile_;
};

} // namespace
} // namespace quire
