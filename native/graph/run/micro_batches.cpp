#include "graph/run/micro_batches.h"

#include <algorithm>

namespace quire {
namespace {

template <class T> std::vector<T> between(const std::vector<T> &all, size_t begin, size_t end) {
    if (all.empty()) return {};
    return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)};
}

void add_sequences(StepBatch &part, const StepBatch &batch, size_t begin, size_t end) {
    for (size_t s = 0; s < batch.n_kv.size(); ++s) {
        const auto first = static_cast<size_t>(batch.row_begin[s]), last = static_cast<size_t>(batch.row_begin[s + 1]);
        if (last <= begin || first >= end) continue;
        part.row_begin.push_back(static_cast<int32_t>(std::max(first, begin) - begin));
        const size_t later = last - std::min(last, end); // rows of the sequence that come after this part
        part.n_kv.push_back(batch.n_kv[s] - static_cast<int32_t>(later));
        if (!batch.states.empty()) part.states.push_back(batch.states[s]);
        for (size_t g = 0; g < batch.groups.size(); ++g)
            part.groups[g].table_begin.push_back(batch.groups[g].table_begin[s]);
    }
    part.row_begin.push_back(static_cast<int32_t>(end - begin));
}

StepBatch micro_batch(const StepBatch &batch, size_t begin, size_t end) {
    StepBatch part;
    const size_t n_rows = batch.tokens.size(), n_features = batch.features.size() / n_rows;
    part.tokens = between(batch.tokens, begin, end);
    part.positions = between(batch.positions, begin, end);
    part.token_types = between(batch.token_types, begin, end);
    for (size_t axis = 0; !batch.axes.empty() && axis < 3; ++axis) {
        const std::vector<int32_t> places = between(batch.axes, axis * n_rows + begin, axis * n_rows + end);
        part.axes.insert(part.axes.end(), places.begin(), places.end());
    }
    for (size_t i = 0; i < batch.logit_rows.size(); ++i) {
        const auto row = static_cast<size_t>(batch.logit_rows[i]);
        if (row < begin || row >= end) continue;
        part.logit_rows.push_back(static_cast<int32_t>(row - begin));
        if (!batch.likeliest.empty()) part.likeliest.push_back(batch.likeliest[i]);
    }
    part.hidden = batch.hidden;
    part.features = batch.features.subspan(begin * n_features, (end - begin) * n_features);
    for (const GroupBatch &group : batch.groups)
        part.groups.push_back({between(group.slots, begin, end), {}, group.tables});
    add_sequences(part, batch, begin, end);
    return part;
}

// Rows that see later ones of the step cannot be computed before them.
bool is_divisible(const StepBatch &batch) {
    return std::ranges::all_of(
        batch.groups, [](const GroupBatch &group) { return group.n_source.empty() && group.last_visible.empty(); });
}

} // namespace

std::vector<StepBatch> micro_batches(const StepBatch &batch, size_t most) {
    const size_t n_rows = batch.tokens.size(), n = std::min(most, n_rows / micro_batch_rows);
    std::vector<StepBatch> parts;
    if (n < 2 || !is_divisible(batch) || !batch.adapters.empty()) return parts;
    for (size_t i = 0; i < n; ++i) parts.push_back(micro_batch(batch, n_rows * i / n, n_rows * (i + 1) / n));
    return parts;
}

} // namespace quire
