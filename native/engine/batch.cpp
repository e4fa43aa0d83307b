#include "engine/batch.h"

namespace quire {
namespace {

void clear(StepBatch &batch, size_t n_groups) {
    for (auto *array : {&batch.tokens, &batch.positions, &batch.token_types, &batch.logit_rows, &batch.row_begin,
                        &batch.n_kv, &batch.states})
        array->clear();
    batch.groups.resize(n_groups);
    for (GroupBatch &group : batch.groups)
        for (auto *array : {&group.slots, &group.table_begin, &group.tables}) array->clear();
}

void add_rows(StepBatch &batch, const PlanItem &item) {
    const Sequence &s = *item.sequence;
    for (int32_t i = 0; i < item.n_tokens; ++i) {
        const int64_t position = item.first + i;
        if (i >= item.n_tokens - item.n_logit_rows)
            batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()));
        batch.tokens.push_back(s.token_at(position));
        batch.positions.push_back(static_cast<int32_t>(position));
        batch.token_types.push_back(position >= s.second_text ? 1 : 0);
    }
    batch.row_begin.push_back(static_cast<int32_t>(batch.tokens.size()));
}

// Blocks that are reserved for later steps are left out.
void add_table(GroupBatch &group, const BlockTable &table, const PlanItem &item, int64_t n_blocks) {
    group.table_begin.push_back(static_cast<int32_t>(group.tables.size()));
    for (BlockId block : std::span(table.blocks()).first(static_cast<size_t>(n_blocks)))
        group.tables.push_back(index(block));
    for (int32_t i = 0; i < item.n_tokens; ++i) group.slots.push_back(table.slot(item.first + i));
}

} // namespace

void fill_batch(StepBatch &batch, const Plan &plan, const CachePool &pool) {
    clear(batch, pool.n_groups());
    batch.row_begin.push_back(0);
    for (const PlanItem &item : plan.items) {
        add_rows(batch, item);
        const SequenceCache &cache = item.sequence->cache;
        const int64_t n_kv = item.first + item.n_tokens;
        batch.n_kv.push_back(static_cast<int32_t>(n_kv));
        for (size_t i = 0; i < batch.groups.size(); ++i)
            add_table(batch.groups[i], cache.tables()[i], item, pool.blocks_for_tokens(n_kv));
        if (cache.state()) batch.states.push_back(index(*cache.state()));
    }
}

} // namespace quire
