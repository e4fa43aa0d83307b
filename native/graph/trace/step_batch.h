// A step as flat arrays, on which both lowerings and the scheduler agree.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "graph/trace/adapter_use.h"

namespace quire {

inline constexpr size_t logit_strip = 64;
constexpr size_t n_logit_strips(size_t n_vocab) { return (n_vocab + logit_strip - 1) / logit_strip; }

enum class HiddenStates { unwanted, wanted };

// Where the rows of a step lie in one group of layers (kv/cache_spec.h).
struct GroupBatch {
    std::vector<int32_t> slots; // [n_rows] where the row's K and V go: block * kv_block_tokens + offset
    std::vector<int32_t> table_begin; // [n_sequences] first entry of the sequence's blocks in `tables`
    std::vector<int32_t> tables; // block ids; 0, the null block, where no row of the step or later sees the block
    // [n_sequences] tokens that the sequence has in a group that is of source texts; empty: those of the step's n_kv.
    std::vector<int32_t> n_source = {};
    const std::vector<int32_t> &n_kv_of(const std::vector<int32_t> &of_step) const {
        return n_source.empty() ? of_step : n_source;
    }
    // [n_rows] the last position that each row sees, where some rows see later ones, of their image; empty: its own.
    std::vector<int32_t> last_visible = {};
    // The last position that a row sees, which is at `position` of a sequence.
    int32_t last_seen(int sequence, int row, int32_t position) const {
        if (!n_source.empty()) return n_source[static_cast<size_t>(sequence)] - 1;
        return last_visible.empty() ? position : last_visible[static_cast<size_t>(row)];
    }
};

// Flat arrays of one step.  Rows are the step's tokens, grouped by sequence and in order of position.
struct StepBatch {
    std::vector<int32_t> tokens; // [n_rows] ids
    std::vector<int32_t> positions; // [n_rows] position in the sequence
    std::vector<int32_t> token_types; // [n_rows] 0; 1 in the second text of a pair
    // [3, n_rows] places in time, height and width, for rotations with sections; empty: the position in all three.
    std::vector<int32_t> axes;
    std::vector<int32_t> logit_rows; // rows whose logits are needed, ascending
    // [logit_rows.size()] k: only the k likeliest logits of the row are needed, of equal ones those with smaller ids;
    // 0: all are, as if this is empty.
    std::vector<int32_t> likeliest = {};
    std::vector<int32_t> row_begin; // [n_sequences + 1] first row of each sequence
    std::vector<int32_t> n_kv; // [n_sequences] tokens in the cache after this step's writes
    std::vector<GroupBatch> groups; // by group of the cache's layout
    std::vector<int32_t> states; // [n_sequences] slot of the recurrent state; empty where no layer keeps one
    HiddenStates hidden = HiddenStates::unwanted; // for the logit rows
    // [n_sequences] the adapters of its rows, in the order in which they are added; empty: no sequence has any.
    std::vector<std::vector<AdapterUse>> adapters = {};
    std::span<const float> features = {}; // [n_rows, n] that the trace reads; borrowed until the step has run

    // [begin, end) of a sequence's rows after the first `skipped`: of the step's tokens, or of those whose logits are
    // needed.
    std::pair<int32_t, int32_t> rows_of(size_t sequence, bool of_logits, int32_t skipped = 0) const {
        const int32_t begin = row_begin[sequence] + skipped, end = row_begin[sequence + 1];
        if (!of_logits) return {begin, end};
        const auto at = [&](int32_t row) {
            return static_cast<int32_t>(std::ranges::lower_bound(logit_rows, row) - logit_rows.begin());
        };
        return {at(begin), at(end)};
    }
};

} // namespace quire
