#include "engine/batch.h"

namespace quire {
namespace {

void add_rows(StepBatch &batch, const PlanItem &item) {
    const Sequence &s = *item.sequence;
    for (int32_t i = 0; i < item.n_tokens; ++i) {
        const int64_t position = item.first + i;
        if (i >= item.n_tokens - item.n_logit_rows)
            batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()));
        batch.tokens.push_back(s.tokens[static_cast<size_t>(position)]);
        batch.positions.push_back(static_cast<int32_t>(position));
        for (GroupBatch &group : batch.groups) group.slots.push_back(s.table.slot(position));
    }
    batch.row_begin.push_back(static_cast<int32_t>(batch.tokens.size()));
}

} // namespace

void fill_batch(StepBatch &batch, const Plan &plan, int block_tokens, size_t n_groups) {
    for (auto *array : {&batch.tokens, &batch.positions, &batch.logit_rows, &batch.row_begin, &batch.n_kv})
        array->clear();
    batch.groups.resize(n_groups);
    for (GroupBatch &group : batch.groups)
        for (auto *array : {&group.slots, &group.table_begin, &group.tables}) array->clear();
    batch.row_begin.push_back(0);
    for (const PlanItem &item : plan.items) {
        add_rows(batch, item);
        const int64_t n_kv = item.first + item.n_tokens;
        batch.n_kv.push_back(static_cast<int32_t>(n_kv));
        const auto n_blocks = static_cast<size_t>((n_kv + block_tokens - 1) / block_tokens);
        for (GroupBatch &group : batch.groups) {
            group.table_begin.push_back(static_cast<int32_t>(group.tables.size()));
            for (size_t i = 0; i < n_blocks; ++i) group.tables.push_back(index(item.sequence->table.blocks()[i]));
        }
    }
}

} // namespace quire
