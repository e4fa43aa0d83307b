#include "graph/stock/step_inputs.h"

#include <algorithm>
#include <limits>

#include "graph/stock/adapter_products.h"
#include "graph/trace/boundary.h"

namespace quire {
namespace {

constexpr uint16_t shown_f16 = 0, hidden_f16 = 0xFC00; // 0 and minus infinity

// Rows of the batch, then zeros.
void fill_padded(const StepToFill &step, ggml_tensor *target, const std::vector<int32_t> &values) {
    if (target == nullptr) return;
    auto *out = step.memory.host<int32_t>(target);
    std::copy(values.begin(), values.end(), out);
    std::fill(out + values.size(), out + target->ne[0], 0);
}

// Padding rows write to the null block, block 0.
void fill_slots(const StepToFill &step, int group, ggml_tensor *target) {
    const std::vector<int32_t> &slots = step.batch.groups[static_cast<size_t>(group)].slots;
    auto *out = step.memory.host<int64_t>(target);
    // Distinct slots, as overlapping targets are undefined in ggml.  Padding beyond the slots of a block does overlap;
    // any of its values will do.
    for (size_t row = 0; row < static_cast<size_t>(target->ne[0]); ++row)
        out[row] = row < slots.size() ? slots[row] : static_cast<int64_t>(row) % kv_block_tokens;
}

const GroupAttention &of_group(const StepToFill &step, int group) { return step.attention[static_cast<size_t>(group)]; }
const std::vector<StreamRun> &runs_of(const StepToFill &step, PartPlace place) {
    return of_group(step, place.group).runs[static_cast<size_t>(place.part)];
}
const AttentionPart &part_of(const StepToFill &step, PartPlace place) {
    return of_group(step, place.group).form.parts[static_cast<size_t>(place.part)];
}
const int32_t *table_of(const StepToFill &step, int group, int sequence) {
    const GroupBatch &batch = step.batch.groups[static_cast<size_t>(group)];
    return batch.tables.data() + batch.table_begin[static_cast<size_t>(sequence)];
}

void fill_rows(const StepToFill &step, PartPlace place, ggml_tensor *target) {
    auto *out = step.memory.host<int32_t>(target);
    std::fill(out, out + target->ne[0], 0);
    const int stream_rows = part_of(step, place).stream_rows;
    for (const StreamRun &run : runs_of(step, place))
        for (int i = 0; i < run.n; ++i) out[run.stream * stream_rows + run.first + i] = run.begin + i;
}

void fill_places(const StepToFill &step, int group, ggml_tensor *target) {
    auto *out = step.memory.host<int32_t>(target);
    std::fill(out, out + target->ne[0], 0);
    const GroupAttention &attention = of_group(step, group);
    int32_t first = 0; // first row in the part
    for (size_t p = 0; p < attention.runs.size(); ++p) {
        const AttentionPart &part = attention.form.parts[p];
        for (const StreamRun &run : attention.runs[p])
            for (int i = 0; i < run.n; ++i) out[run.begin + i] = first + run.stream * part.stream_rows + run.first + i;
        first += part.n_rows();
    }
}

void fill_blocks(const StepToFill &step, PartPlace place, ggml_tensor *target) {
    auto *out = step.memory.host<int32_t>(target);
    std::fill(out, out + ggml_nelements(target), 0);
    const AttentionPart &part = part_of(step, place);
    if (part.source == CachedRows::live) {
        std::ranges::copy(of_group(step, place.group).live[static_cast<size_t>(place.part)], out);
        return;
    }
    for (const StreamRun &run : runs_of(step, place)) {
        const int32_t *blocks = table_of(step, place.group, run.sequence) + run.first_block;
        std::copy(blocks, blocks + run.n_blocks, out + int64_t{run.stream} * (part.n_kv / kv_block_tokens));
    }
}

// The first and the last cached token that a row sees.
struct Seen {
    int32_t first, last;
};
Seen seen_by(const StepToFill &step, int group, int sequence, int row) {
    const int32_t position = step.batch.positions[static_cast<size_t>(row)];
    const int32_t last = step.batch.groups[static_cast<size_t>(group)].last_seen(sequence, row, position);
    return {static_cast<int32_t>(step.lifetime(group).first_seen(position)), last};
}

void fill_spans(const StepToFill &step, PartPlace place, ggml_tensor *target) {
    auto *out = step.memory.host<int32_t>(target);
    std::fill(out, out + ggml_nelements(target), 0);
    for (const StreamRun &run : runs_of(step, place))
        for (int i = 0; i < run.n; ++i) {
            const auto [first, last] = seen_by(step, place.group, run.sequence, run.begin + i);
            int32_t *span = out + 2 * (int64_t{run.stream} * part_of(step, place).stream_rows + run.first + i);
            span[0] = first - run.first_block * kv_block_tokens;
            span[1] = last + 1 - first;
        }
}

// Calls `use(first, n, position)` for each contiguous run of cached tokens that a row sees: [first, first + n) of its
// stream's tokens, with positions from `position` on.
template <class Use>
void for_seen(const StepToFill &step, PartPlace place, const std::vector<int32_t> &places, const StreamRun &run,
              int row, const Use &use) {
    const AttentionPart &part = part_of(step, place);
    const CachedRows source = part.source;
    const auto [first, last] = seen_by(step, place.group, run.sequence, row);
    if (source == CachedRows::sequence) return use(first - run.first_block * kv_block_tokens, last + 1 - first, first);
    const int32_t *table = table_of(step, place.group, run.sequence);
    for (int32_t at = first; at <= last;) {
        const int32_t end = std::min(last + 1, (at / kv_block_tokens + 1) * kv_block_tokens);
        const int32_t block = table[at / kv_block_tokens];
        const int32_t there =
            source == CachedRows::pool ? block - part.first_kv / kv_block_tokens : places[static_cast<size_t>(block)];
        use(there * kv_block_tokens + at % kv_block_tokens, end - at, at);
        at = end;
    }
}

void fill_row_mask(const StepToFill &step, int window, ggml_tensor *target) {
    const StepBatch &batch = step.batch;
    const auto n = static_cast<size_t>(target->ne[0]);
    auto *out = step.memory.host<float>(target);
    std::fill(out, out + n * n, -std::numeric_limits<float>::infinity());
    for (size_t sequence = 0; sequence < batch.n_kv.size(); ++sequence) {
        const int32_t begin = batch.row_begin[sequence], end = batch.row_begin[sequence + 1];
        for (int32_t row = begin; row < end; ++row) {
            const int32_t reach = window > 0 ? window / 2 : end - begin;
            float *line = out + static_cast<size_t>(row) * n;
            std::fill(line + std::max(begin, row - reach), line + std::min(end, row + reach + 1), 0.0F);
        }
    }
    for (size_t row = batch.tokens.size(); row < n; ++row) out[row * n + row] = 0.0F; // keeps its softmax finite
}

// The rows of a sequence are adjacent; pairs of rows of different sequences are masked.
void fill_row_bias_columns(const StepToFill &step, int n, ggml_tensor *target) {
    const auto n_rows = static_cast<int32_t>(target->ne[1]);
    auto *out = step.memory.host<int32_t>(target);
    for (int32_t row = 0; row < n_rows; ++row)
        for (int32_t other = 0; other < n_rows; ++other) *out++ = std::clamp(n / 2 + other - row, 0, n - 1);
}

// The index of a row changes slower, or that of a token.
void fill_buckets(const StepToFill &step, const std::vector<int32_t> &buckets, bool by_token, ggml_tensor *target) {
    const auto n = static_cast<int32_t>(target->ne[1]), middle = static_cast<int32_t>(buckets.size() / 2);
    auto *out = step.memory.host<int32_t>(target);
    for (int32_t slow = 0; slow < n; ++slow)
        for (int32_t fast = 0; fast < n; ++fast)
            *out++ = buckets[static_cast<size_t>(
                std::clamp(middle + (by_token ? slow - fast : fast - slow), 0, 2 * middle))];
}

// ggml has a fourth axis, for pairs beyond the sections of Qwen3-VL: it is time, as in transformers.
void fill_axes(const StepToFill &step, ggml_tensor *target) {
    if (target == nullptr) return;
    const StepBatch &batch = step.batch;
    const size_t n = static_cast<size_t>(target->ne[0]) / 4, n_rows = batch.positions.size();
    auto *out = step.memory.host<int32_t>(target);
    std::fill(out, out + 4 * n, 0);
    for (size_t stream = 0; stream < 4; ++stream)
        for (size_t row = 0; row < n_rows; ++row)
            out[stream * n + row] = batch.axes.empty() ? batch.positions[row] : batch.axes[stream % 3 * n_rows + row];
}

void fill_carried(const StepToFill &step, const Boundary &boundary, ggml_tensor *target) {
    const size_t n_rows = boundary.shape.lead == Lead::tokens ? step.batch.tokens.size() : step.batch.logit_rows.size();
    const size_t n = n_rows * static_cast<size_t>(boundary.row_floats());
    auto *out = step.memory.host<float>(target);
    std::copy_n(boundary.host, n, out);
    std::fill(out + n, out + ggml_nelements(target), 0.0F);
}

void fill_features(const StepToFill &step, ggml_tensor *target) {
    if (target == nullptr) return;
    auto *out = step.memory.host<float>(target);
    std::fill(std::ranges::copy(step.batch.features, out).out, out + ggml_nelements(target), 0.0F);
}

void fill_sequences(const StepToFill &step, ggml_tensor *target) {
    if (target == nullptr) return;
    const StepBatch &batch = step.batch;
    const size_t n = batch.n_kv.size();
    auto *out = step.memory.host<int32_t>(target);
    for (size_t i = 0; i < static_cast<size_t>(target->ne[1]); ++i) {
        out[2 * i] = batch.row_begin[std::min(i, n)];
        out[2 * i + 1] = i < n ? batch.states[i] : 0;
    }
}

} // namespace

CacheLifetime StepToFill::lifetime(int group) const { return layout.groups()[static_cast<size_t>(group)].lifetime; }

// Row r of stream s begins at (s * stream_rows + r) * n_kv.
void StepInputs::fill_mask(const StepToFill &step, PartPlace place, ggml_tensor *target) {
    const AttentionPart &part = part_of(step, place);
    const auto n_kv = static_cast<size_t>(part.n_kv), n_rows = static_cast<size_t>(part.n_rows());
    auto *out = step.memory.host<uint16_t>(target);
    std::vector<Shown> &shown = shown_[place];
    if (masks_of_ == step.graph.id) {
        for (const Shown &piece : shown) std::fill_n(out + piece.begin, piece.n, hidden_f16);
    } else {
        std::fill_n(out, n_rows * n_kv, hidden_f16);
    }
    shown.clear();
    is_row_.assign(n_rows, false);
    auto show = [&](size_t begin, size_t n) {
        std::fill_n(out + begin, n, shown_f16);
        if (!shown.empty() && shown.back().begin + shown.back().n == begin)
            shown.back().n += n;
        else
            shown.push_back({begin, n});
    };
    for (const StreamRun &run : runs_of(step, place)) {
        for (int i = 0; i < run.n; ++i) {
            const auto row = static_cast<size_t>(run.stream * part.stream_rows + run.first + i);
            is_row_[row] = true;
            for_seen(step, place, places_, run, run.begin + i, [&](int32_t first, int32_t n, int32_t) {
                show(row * n_kv + static_cast<size_t>(first), static_cast<size_t>(n));
            });
        }
    }
    // Padding rows see one token, so that their softmax is finite.
    for (size_t row = 0; row < n_rows; ++row)
        if (!is_row_[row]) show(row * n_kv, 1);
}

void StepInputs::fill_bias_columns(const StepToFill &step, PartPlace place, ggml_tensor *target) {
    const AttentionPart &part = part_of(step, place);
    auto *out = step.memory.host<int32_t>(target);
    std::fill(out, out + ggml_nelements(target), 0);
    for (const StreamRun &run : runs_of(step, place)) {
        for (int i = 0; i < run.n; ++i) {
            const int row = run.stream * part.stream_rows + run.first + i,
                      own = step.batch.positions[static_cast<size_t>(run.begin + i)];
            int32_t *line = out + int64_t{row} * part.n_kv;
            for_seen(step, place, places_, run, run.begin + i, [&](int32_t first, int32_t n, int32_t position) {
                for (int32_t t = 0; t < n; ++t)
                    line[first + t] = place.n_columns - 1 + std::clamp(position + t - own, 1 - place.n_columns, 0);
            });
        }
    }
}

// The places of blocks that are copied for all rows.
void StepInputs::find_places(const StepToFill &step, PartPlace place) {
    if (part_of(step, place).source != CachedRows::live) return;
    const std::vector<int32_t> &live = of_group(step, place.group).live[static_cast<size_t>(place.part)];
    places_.resize(std::max(places_.size(), static_cast<size_t>(live.back()) + 1));
    for (size_t i = 0; i < live.size(); ++i) places_[static_cast<size_t>(live[i])] = static_cast<int32_t>(i);
}

void StepInputs::fill(const StepToFill &step) {
    const GraphInputs &inputs = step.graph.inputs;
    *step.graph.batch = &step.batch;
    fill_padded(step, inputs.tokens, step.batch.tokens);
    fill_padded(step, inputs.positions, step.batch.positions);
    fill_padded(step, inputs.logit_rows, step.batch.logit_rows);
    fill_padded(step, inputs.token_types, step.batch.token_types);
    fill_axes(step, inputs.axes);
    fill_features(step, inputs.features);
    fill_sequences(step, inputs.sequences);
    fill_state_inputs(step);
    fill_adapter_inputs(step);
    for (auto [target, boundary] : inputs.carried) fill_carried(step, *boundary, target);
    for (auto [window, target] : inputs.row_masks) fill_row_mask(step, window, target);
    for (auto [n, target] : inputs.row_bias_columns) fill_row_bias_columns(step, n, target);
    for (auto [buckets, target] : inputs.row_buckets) fill_buckets(step, *buckets, false, target);
    for (auto [buckets, target] : inputs.token_buckets) fill_buckets(step, *buckets, true, target);
    for (auto [group, target] : inputs.slots) fill_slots(step, group, target);
    for (auto [group, target] : inputs.places) fill_places(step, group, target);
    for (auto [place, target] : inputs.rows) fill_rows(step, place, target);
    for (auto [place, target] : inputs.blocks) fill_blocks(step, place, target);
    for (auto [place, target] : inputs.spans) fill_spans(step, place, target);
    for (auto [place, target] : inputs.masks) {
        find_places(step, place);
        fill_mask(step, place, target);
    }
    for (auto [place, target] : inputs.bias_columns) {
        find_places(step, place);
        fill_bias_columns(step, place, target);
    }
    masks_of_ = step.graph.id;
}

} // namespace quire
