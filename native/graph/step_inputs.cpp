#include "graph/step_inputs.h"

#include <ggml-backend.h>

#include <algorithm>
#include <limits>

namespace quire {
namespace {

template <class T> void upload(ggml_tensor *target, const std::vector<T> &values) {
    ggml_backend_tensor_set(target, values.data(), 0, values.size() * sizeof(T));
}

// Tokens that sequences have in layers of that lifetime.
const std::vector<int32_t> &n_kv_of(const StepBatch &batch, CacheLifetime lifetime) {
    if (lifetime.of_source)
        for (const GroupBatch &group : batch.groups)
            if (!group.n_source.empty()) return group.n_source;
    return batch.n_kv;
}

// Row of the store, seen as [n_blocks * n_kv_head * block_tokens, head_dim], of one head of a slot.
int64_t store_row(int64_t slot, int64_t head, int64_t n_kv_head) {
    return ((slot / kv_block_tokens) * n_kv_head + head) * kv_block_tokens + slot % kv_block_tokens;
}

} // namespace

void StepInputs::fill_padded(ggml_tensor *target, const std::vector<int32_t> &values) {
    if (target == nullptr || target->buffer == nullptr) return; // an input that the model does not use has no memory
    ints_.assign(static_cast<size_t>(target->ne[0]), 0);
    std::copy(values.begin(), values.end(), ints_.begin());
    upload(target, ints_);
}

// Padding rows write to the null block, block 0.
void StepInputs::fill_write_rows(ggml_tensor *target, const StepBatch &batch, GroupHeads of) {
    const int n_kv_head = of.n_kv_head;
    const std::vector<int32_t> &slots = batch.groups[static_cast<size_t>(of.group)].slots;
    longs_.resize(static_cast<size_t>(target->ne[0]));
    size_t n_rows = longs_.size() / static_cast<size_t>(n_kv_head);
    for (size_t row = 0; row < n_rows; ++row) {
        // Distinct slots, as overlapping targets are undefined in ggml; more padding than a block has slots may overlap,
        // and then any of the values will do.
        int64_t slot = row < slots.size() ? slots[row] : static_cast<int64_t>(row) % kv_block_tokens;
        for (int head = 0; head < n_kv_head; ++head) {
            longs_[row * static_cast<size_t>(n_kv_head) + static_cast<size_t>(head)] = store_row(slot, head, n_kv_head);
        }
    }
    upload(target, longs_);
}

void StepInputs::fill_gather_rows(ggml_tensor *target, const StepBatch &batch, GroupHeads of) {
    const int n_kv_head = of.n_kv_head;
    const GroupBatch &group = batch.groups[static_cast<size_t>(of.group)];
    ints_.assign(static_cast<size_t>(target->ne[0]), 0);
    const std::vector<int32_t> &lengths = group.n_kv_of(batch.n_kv);
    size_t n_kv = ints_.size() / static_cast<size_t>(n_kv_head);
    size_t column = 0;
    for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
        const int32_t *table = group.tables.data() + group.table_begin[sequence];
        for (int32_t position = 0; position < lengths[sequence]; ++position, ++column) {
            int64_t slot = int64_t{table[position / kv_block_tokens]} * kv_block_tokens + position % kv_block_tokens;
            for (int head = 0; head < n_kv_head; ++head) {
                ints_[static_cast<size_t>(head) * n_kv + column] =
                    static_cast<int32_t>(store_row(slot, head, n_kv_head));
            }
        }
    }
    upload(target, ints_);
}

void StepInputs::fill_mask(ggml_tensor *target, const StepBatch &batch, CacheLifetime lifetime) {
    auto n_kv = static_cast<size_t>(target->ne[0]), n_rows = static_cast<size_t>(target->ne[1]);
    floats_.assign(n_kv * n_rows, -std::numeric_limits<float>::infinity());
    const std::vector<int32_t> &lengths = n_kv_of(batch, lifetime);
    size_t first_column = 0;
    for (size_t sequence = 0; sequence < lengths.size(); ++sequence) {
        for (int32_t row = batch.row_begin[sequence]; row < batch.row_begin[sequence + 1]; ++row) {
            int32_t last = lifetime.of_source ? lengths[sequence] - 1 : batch.positions[static_cast<size_t>(row)];
            const auto first = static_cast<int32_t>(lifetime.first_seen(last));
            float *line = floats_.data() + static_cast<size_t>(row) * n_kv + first_column;
            std::fill(line + first, line + last + 1, 0.0F);
        }
        first_column += static_cast<size_t>(lengths[sequence]);
    }
    // Padding rows look at one column, so that their softmax is a number.
    for (size_t row = batch.tokens.size(); row < n_rows; ++row) floats_[row * n_kv] = 0.0F;
    upload(target, floats_);
}

void StepInputs::fill_row_mask(ggml_tensor *target, const StepBatch &batch, int window) {
    const auto n = static_cast<size_t>(target->ne[0]);
    floats_.assign(n * n, -std::numeric_limits<float>::infinity());
    for (size_t sequence = 0; sequence < batch.n_kv.size(); ++sequence) {
        const int32_t begin = batch.row_begin[sequence], end = batch.row_begin[sequence + 1];
        for (int32_t row = begin; row < end; ++row) {
            const int32_t reach = window > 0 ? window / 2 : end - begin;
            float *line = floats_.data() + static_cast<size_t>(row) * n;
            std::fill(line + std::max(begin, row - reach), line + std::min(end, row + reach + 1), 0.0F);
        }
    }
    for (size_t row = batch.tokens.size(); row < n; ++row) floats_[row * n + row] = 0.0F; // as above
    upload(target, floats_);
}

void StepInputs::fill_bias_columns(ggml_tensor *target, const StepBatch &batch, int n) {
    const size_t n_rows = static_cast<size_t>(target->ne[1]), n_kv = static_cast<size_t>(target->ne[0]);
    ints_.assign(n_kv * n_rows, 0);
    size_t first_column = 0;
    for (size_t sequence = 0; sequence < batch.n_kv.size(); ++sequence) {
        for (int32_t row = batch.row_begin[sequence]; row < batch.row_begin[sequence + 1]; ++row) {
            const int32_t own = batch.positions[static_cast<size_t>(row)];
            int32_t *line = ints_.data() + static_cast<size_t>(row) * n_kv + first_column;
            for (int32_t t = 0; t <= own; ++t) line[t] = std::max(0, n - 1 + t - own);
        }
        first_column += static_cast<size_t>(batch.n_kv[sequence]);
    }
    upload(target, ints_);
}

// Rows of a sequence lie side by side; what is between those of several is masked.
void StepInputs::fill_row_bias_columns(ggml_tensor *target, int n) {
    const auto n_rows = static_cast<int32_t>(target->ne[1]);
    ints_.clear();
    for (int32_t row = 0; row < n_rows; ++row)
        for (int32_t other = 0; other < n_rows; ++other) ints_.push_back(std::clamp(n / 2 + other - row, 0, n - 1));
    upload(target, ints_);
}

// ggml has a fourth stream, which Qwen3-VL's pairs beyond their sections turn by: that is time, as in transformers.
void StepInputs::fill_axes(ggml_tensor *target, const StepBatch &batch) {
    if (target == nullptr) return;
    const size_t n = static_cast<size_t>(target->ne[0]) / 4, n_rows = batch.positions.size();
    ints_.assign(4 * n, 0);
    for (size_t stream = 0; stream < 4; ++stream)
        for (size_t row = 0; row < n_rows; ++row)
            ints_[stream * n + row] = batch.axes.empty() ? batch.positions[row] : batch.axes[stream % 3 * n_rows + row];
    upload(target, ints_);
}

void StepInputs::fill_sequences(ggml_tensor *target, const StepBatch &batch) {
    if (target == nullptr) return;
    const size_t n = batch.n_kv.size();
    ints_.assign(static_cast<size_t>(ggml_nelements(target)), 0);
    for (size_t i = 0; i < ints_.size() / 2; ++i) {
        ints_[2 * i] = batch.row_begin[std::min(i, n)];
        if (i < n) ints_[2 * i + 1] = batch.states[i];
    }
    upload(target, ints_);
}

void StepInputs::fill(const LoweredGraph &graph, const StepBatch &batch) {
    const GraphInputs &inputs = graph.inputs;
    fill_padded(inputs.tokens, batch.tokens);
    fill_padded(inputs.positions, batch.positions);
    fill_padded(inputs.logit_rows, batch.logit_rows);
    fill_padded(inputs.token_types, batch.token_types);
    fill_axes(inputs.axes, batch);
    for (auto [of, target] : inputs.write_rows) fill_write_rows(target, batch, of);
    for (auto [of, target] : inputs.gather_rows) fill_gather_rows(target, batch, of);
    for (auto [window, target] : inputs.row_masks) fill_row_mask(target, batch, window);
    for (auto [n, target] : inputs.bias_columns) fill_bias_columns(target, batch, n);
    for (auto [n, target] : inputs.row_bias_columns) fill_row_bias_columns(target, n);
    fill_sequences(inputs.sequences, batch);
    for (auto [lifetime, target] : inputs.masks) fill_mask(target, batch, lifetime);
}

} // namespace quire
