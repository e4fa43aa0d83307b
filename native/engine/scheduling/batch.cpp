#include "engine/scheduling/batch.h"

#include <algorithm>

namespace quire {
namespace {

// The token in the place of a row of media, whose placeholder's embedding is not read.  Models with embeddings for every
// layer (Gemma 3n and 4) read those of the padding token there, whose id is 0 in all of them.
constexpr int32_t media_token = 0;

void clear(StepBatch &batch, size_t n_groups) {
    for (auto *array : {&batch.tokens, &batch.positions, &batch.token_types, &batch.axes, &batch.logit_rows,
                        &batch.row_begin, &batch.n_kv, &batch.states})
        array->clear();
    batch.adapters.clear();
    batch.groups.resize(n_groups);
    for (GroupBatch &group : batch.groups)
        for (auto *array : {&group.slots, &group.table_begin, &group.tables, &group.n_source, &group.last_visible})
            array->clear();
}

void add_rows(StepBatch &batch, const PlanItem &item) {
    const Sequence &s = *item.sequence;
    for (int32_t i = 0; i < item.n_tokens; ++i) {
        const int64_t position = item.first + i;
        if (i >= item.n_tokens - item.n_logit_rows)
            batch.logit_rows.push_back(static_cast<int32_t>(batch.tokens.size()));
        batch.tokens.push_back(s.media && s.media->span_at(position) ? media_token : s.token_at(position));
        batch.positions.push_back(static_cast<int32_t>(position));
        batch.token_types.push_back(position >= s.second_text ? 1 : 0);
    }
    batch.row_begin.push_back(static_cast<int32_t>(batch.tokens.size()));
}

// The places of all rows, if some are not the positions.
void add_axes(StepBatch &batch, const Plan &plan) {
    const auto has_places = [](const PlanItem &item) {
        return item.sequence->media && !item.sequence->media->axes.empty();
    };
    if (std::none_of(plan.items.begin(), plan.items.end(), has_places)) return;
    for (size_t axis = 0; axis < 3; ++axis)
        for (const PlanItem &item : plan.items)
            for (int64_t position = item.first; position < item.first + item.n_tokens; ++position)
                batch.axes.push_back(has_places(item) ? item.sequence->media->place(axis, position)
                                                      : static_cast<int32_t>(position));
}

// The last position that each row sees, if a row sees later ones.
std::vector<int32_t> last_visible(const Plan &plan) {
    std::vector<int32_t> rows;
    bool sees_later = false;
    for (const PlanItem &item : plan.items) {
        const PromptMedia *media = item.sequence->media.get();
        for (int64_t position = item.first; position < item.first + item.n_tokens; ++position) {
            const MediaSpan *span = media ? media->bidirectional_at(position) : nullptr;
            sees_later = sees_later || span;
            rows.push_back(static_cast<int32_t>(span ? span->end() - 1 : position));
        }
    }
    if (!sees_later) rows.clear();
    return rows;
}

// Blocks that are reserved for later steps are left out.
void add_table(GroupBatch &group, const BlockTable &table, int64_t n_blocks) {
    group.table_begin.push_back(static_cast<int32_t>(group.tables.size()));
    for (BlockId block : std::span(table.blocks()).first(static_cast<size_t>(n_blocks)))
        group.tables.push_back(index(block));
}

void add_slots(GroupBatch &group, const BlockTable &table, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; ++i) group.slots.push_back(table.slot(i));
}

// For rows of the positions [first, first + n).  `n_items`: sequences of the batch so far.
void add_used_adapters(StepBatch &batch, const Sequence &sequence, int64_t first, int64_t n, size_t n_items) {
    if (sequence.adapters.empty() && batch.adapters.empty()) return;
    batch.adapters.resize(n_items);
    for (const HeldAdapter &held : sequence.adapters) {
        const int64_t skipped = std::max<int64_t>(0, held.first - first);
        if (skipped < n)
            batch.adapters.back().push_back({held.adapter.get(), held.scale, static_cast<int32_t>(skipped)});
    }
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
        for (size_t i = 0; i < batch.groups.size(); ++i) {
            GroupBatch &group = batch.groups[i];
            const BlockTable &table = cache.tables()[i];
            if (pool.lifetime(i).of_source) {
                add_table(group, table, table.n_blocks());
                group.n_source.push_back(static_cast<int32_t>(item.sequence->n_source()));
            } else {
                add_table(group, table, pool.blocks_for_tokens(n_kv));
                add_slots(group, table, item.first, item.n_tokens);
            }
        }
        if (cache.state()) batch.states.push_back(index(*cache.state()));
        add_used_adapters(batch, *item.sequence, item.first, item.n_tokens, batch.n_kv.size());
    }
    add_axes(batch, plan);
    if (!pool.has_bidirectional_media()) return;
    const std::vector<int32_t> last = last_visible(plan);
    for (size_t i = 0; i < batch.groups.size(); ++i)
        if (pool.lifetime(i).bidirectional_media) batch.groups[i].last_visible = last;
}

void fill_media(std::vector<float> &rows, const Plan &plan, size_t width) {
    rows.clear();
    for (const PlanItem &item : plan.items)
        for (int64_t position = item.first; position < item.first + item.n_tokens; ++position) {
            const PromptMedia *media = item.sequence->media.get();
            const float *row = media ? media->row(position) : nullptr;
            const std::vector<float> &steering = item.sequence->steering;
            const size_t n_media = row ? media->width : 0;
            rows.push_back(row ? 0.0F : 1.0F);
            if (row) rows.insert(rows.end(), row, row + n_media);
            rows.insert(rows.end(), width - n_media - steering.size(), 0.0F);
            rows.insert(rows.end(), steering.begin(), steering.end());
        }
}

bool fill_source_batch(StepBatch &batch, const Plan &plan, const CachePool &pool) {
    clear(batch, pool.n_groups());
    batch.row_begin.push_back(0);
    for (const PlanItem &item : plan.items) {
        if (item.n_encoded == 0) continue;
        batch.tokens.insert(batch.tokens.end(), item.sequence->source.begin(), item.sequence->source.end());
        for (int32_t i = 0; i < item.n_encoded; ++i) batch.positions.push_back(i);
        batch.row_begin.push_back(static_cast<int32_t>(batch.tokens.size()));
        batch.n_kv.push_back(item.n_encoded);
        add_used_adapters(batch, *item.sequence, 0, item.n_encoded, batch.n_kv.size());
        for (size_t i = 0; i < batch.groups.size(); ++i) {
            if (!pool.lifetime(i).of_source) continue;
            const BlockTable &table = item.sequence->cache.tables()[i];
            add_table(batch.groups[i], table, table.n_blocks());
            add_slots(batch.groups[i], table, 0, item.n_encoded);
        }
    }
    batch.token_types.resize(batch.tokens.size());
    return !batch.tokens.empty();
}

void fill_source_media(std::vector<float> &rows, const Plan &plan) {
    rows.clear();
    for (const PlanItem &item : plan.items) {
        if (item.n_encoded == 0 || !item.sequence->source_media) continue;
        const std::vector<float> &read = item.sequence->source_media->spans.front().rows;
        rows.insert(rows.end(), read.begin(), read.end());
    }
}

} // namespace quire
