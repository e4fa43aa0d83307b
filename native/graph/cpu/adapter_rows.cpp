#include "graph/cpu/adapter_rows.h"

#include <algorithm>

namespace quire {
namespace {

constexpr size_t chunk_rows = 16; // handed to a thread together

void add_sequence(AdapterRows &rows, const AdapterUse &use, std::pair<int32_t, int32_t> span) {
    for (int32_t row = span.first; row < span.second; ++row) {
        const bool is_new =
            rows.chunks.empty() || rows.chunks.back().adapter != use.adapter || rows.chunks.back().n() == chunk_rows;
        if (is_new) rows.chunks.push_back({use.adapter, rows.rows.size(), rows.rows.size()});
        rows.rows.push_back(row);
        rows.scales.push_back(use.scale);
        ++rows.chunks.back().end;
    }
}

std::pair<int32_t, int32_t> use_rows(const StepBatch &batch, size_t s, size_t level, Lead lead) {
    return batch.rows_of(s, lead == Lead::rows, batch.adapters[s][level].skipped);
}

} // namespace

std::vector<AdapterRows> adapter_rows(const StepBatch &batch, Lead lead) {
    std::vector<AdapterRows> levels;
    std::vector<std::pair<const LowRankAdapter *, size_t>> order; // sequences by adapter
    for (size_t level = 0;; ++level) {
        order.clear();
        for (size_t s = 0; s < batch.adapters.size(); ++s)
            if (level < batch.adapters[s].size()) order.emplace_back(batch.adapters[s][level].adapter, s);
        if (order.empty()) return levels;
        std::ranges::sort(order);
        AdapterRows &rows = levels.emplace_back();
        for (const auto &[adapter, s] : order)
            add_sequence(rows, batch.adapters[s][level], use_rows(batch, s, level, lead));
    }
}

} // namespace quire
