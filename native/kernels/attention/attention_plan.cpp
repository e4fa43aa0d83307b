#include "kernels/attention/attention_plan.h"

#include <algorithm>
#include <numeric>

#include "kernels/attention/attention_kernels.h"

namespace quire {
namespace {

// The number of items per worker below which workers may wait long for each other; equal items need fewer.
constexpr int enough_items = 8, enough_equal_items = 4;

AttentionPlan::Cut cut_of(const AttentionShape &shape) {
    return {shape.n_head,    shape.n_kv_head, shape.v_head_dim, shape.window,       shape.chunk,
            shape.both_ways, shape.k_type,    shape.v_type,     shape.picked_tokens};
}

// The used part of a sequence's block table.
struct Table {
    const int32_t *blocks;
    int n;
};

Table table_of(const AttentionBatch &batch, int32_t sequence) {
    return {batch.tables + batch.table_begin[sequence], (batch.n_kv[sequence] + kv_block_tokens - 1) / kv_block_tokens};
}

bool begin_alike(const Table &a, const Table &b) {
    // Leading blocks that fell out of a window are block 0 in both tables, which is not sharing.
    if (std::min(a.n, b.n) < kv_step_blocks || a.blocks[0] == 0) return false;
    return std::equal(a.blocks, a.blocks + kv_step_blocks, b.blocks);
}

} // namespace

AttentionPlan::Layout::Layout(const AttentionShape &shape)
    : cut_(cut_of(shape)), group_(shape.n_head / shape.n_kv_head), tile_heads_(std::min(group_, usual_tile_queries)),
      n_parts_((group_ + tile_heads_ - 1) / tile_heads_),
      // Heads that pick blocks of their own read different memory.
      most_together_(cut_.picked_tokens > 0 ? 1 : std::clamp(usual_tile_queries / group_, 1, cut_.n_kv_head)) {}

// Large tiles read K and V less often; halve them until there are enough for all workers.
void AttentionPlan::Layout::cut(const KernelSet &kernels, const AttentionPlan &plan, const AttentionBatch &batch,
                                int n_workers) {
    int queries = kernels.attention(cut_.k_type, cut_.v_type).tile_queries;
    make_tiles(plan, batch, queries / tile_heads_);
    while (queries > usual_tile_queries && count_items(false) < enough_items * n_workers) {
        queries /= 2;
        make_tiles(plan, batch, queries / tile_heads_);
    }
    // The last rows of a prompt take longest, so they go first.
    std::reverse(tiles_.begin(), tiles_.end());
    spread(n_workers);
    number_items();
}

void AttentionPlan::Layout::make_tiles(const AttentionPlan &plan, const AttentionBatch &batch, int tile_rows) {
    tiles_.clear();
    together_ = most_together_;
    const int n_rows = static_cast<int>(plan.rows_.size());
    for (int first = 0, end; first < n_rows; first = end) {
        end = first + 1;
        while (end < n_rows && end - first < tile_rows && plan.may_join_[static_cast<size_t>(end)]) ++end;
        add_tile(plan, batch, first, end);
    }
}

void AttentionPlan::Layout::add_tile(const AttentionPlan &plan, const AttentionBatch &batch, int first, int end) {
    int oldest = batch.n_kv[plan.rows_[static_cast<size_t>(first)].sequence], newest = 0;
    for (int i = first; i < end; ++i) {
        const Row &row = plan.rows_[static_cast<size_t>(i)];
        AttentionShape shape{};
        shape.window = cut_.window;
        shape.chunk = cut_.chunk;
        shape.both_ways = cut_.both_ways;
        const SeenTokens seen = seen_tokens(shape, batch, row.sequence, row.row);
        newest = std::max(newest, seen.newest);
        oldest = std::min(oldest, seen.oldest);
    }
    if (cut_.picked_tokens > 0) newest = std::min(newest, cut_.picked_tokens - 1);
    tiles_.push_back({first, end - first, oldest / kv_chunk_tokens, newest / kv_chunk_tokens + 1, 0, false, 0, 0});
}

int AttentionPlan::Layout::parts_of(const Tile &tile) const {
    const int heads = heads_of(tile);
    return (cut_.n_kv_head + heads - 1) / heads * n_parts_;
}

int AttentionPlan::Layout::count_items(bool by_chunks) const {
    int n = 0;
    for (const Tile &tile : tiles_) n += parts_of(tile) * (by_chunks ? tile.last_chunk - tile.first_chunk : 1);
    return n;
}

// Make items of single chunks, then of fewer heads, until there are enough for all workers.
void AttentionPlan::Layout::spread(int n_workers) {
    together_ = most_together_;
    is_split_ = n_workers > 1 && count_items(false) < enough_items * n_workers;
    while (is_split_ && together_ > 1 && count_items(true) < enough_equal_items * n_workers)
        together_ = (together_ + 1) / 2;
}

void AttentionPlan::Layout::number_items() {
    const int64_t partial = padded_floats(cut_.v_head_dim) + 16;
    int64_t n_partials = 0;
    int n_counters = 0;
    n_items_ = 0;
    for (Tile &tile : tiles_) {
        const int n_chunks = tile.last_chunk - tile.first_chunk, parts = parts_of(tile);
        tile.first_item = n_items_;
        tile.is_split = is_split_ && n_chunks > 1;
        n_items_ += parts * (tile.is_split ? n_chunks : 1);
        if (!tile.is_split) continue;
        tile.partials = n_partials;
        tile.counter = n_counters;
        n_partials += int64_t{cut_.n_kv_head} * n_parts_ * n_chunks * tile.n_rows * tile_heads_ * partial;
        n_counters += parts;
    }
    if (partials_.size() < static_cast<size_t>(n_partials)) partials_.resize(static_cast<size_t>(n_partials));
    if (n_counters > n_counters_) {
        counters_ = std::make_unique<std::atomic<int>[]>(static_cast<size_t>(n_counters));
        n_counters_ = n_counters;
    }
}

AttentionPlan::Item AttentionPlan::Layout::item(int index) const {
    auto later = [](int wanted, const Tile &tile) { return wanted < tile.first_item; };
    const Tile &tile = *(std::upper_bound(tiles_.begin(), tiles_.end(), index, later) - 1);
    const int parts = parts_of(tile), local = index - tile.first_item;
    const int part = local % parts, heads = heads_of(tile); // one if there are several parts
    const int skipped = part % n_parts_ * tile_heads_;
    Item item{};
    item.tile = &tile;
    item.kv_head = part / n_parts_ * heads;
    item.n_kv_heads = std::min(heads, cut_.n_kv_head - item.kv_head);
    item.first_head = item.kv_head * group_ + skipped;
    item.n_heads = item.n_kv_heads * std::min(tile_heads_, group_ - skipped);
    item.first_chunk = tile.first_chunk;
    item.last_chunk = tile.last_chunk;
    if (!tile.is_split) return item;
    item.first_chunk += local / parts;
    item.last_chunk = item.first_chunk + 1;
    const int64_t size = int64_t{tile.n_rows} * tile_heads_ * (padded_floats(cut_.v_head_dim) + 16);
    item.partials = const_cast<float *>(partials_.data()) + tile.partials +
                    int64_t{part} * heads * size * (tile.last_chunk - tile.first_chunk);
    item.counter = counters_.get() + tile.counter + part;
    return item;
}

void AttentionPlan::add(const AttentionShape &shape) {
    if (find(shape) == nullptr) layouts_.push_back(Layout(shape));
}

const AttentionPlan::Layout *AttentionPlan::find(const AttentionShape &shape) const {
    for (const Layout &layout : layouts_) {
        if (layout.cut_ == cut_of(shape)) return &layout;
    }
    return nullptr;
}

// Order sequences so that those whose tables share a prefix are neighbours; the longer the prefix, the closer.
void AttentionPlan::order_sequences(const AttentionBatch &batch) {
    order_.resize(static_cast<size_t>(batch.n_sequences));
    std::iota(order_.begin(), order_.end(), 0);
    std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
        const Table one = table_of(batch, a), other = table_of(batch, b);
        const int n = std::min(one.n, other.n);
        const auto [x, y] = std::mismatch(one.blocks, one.blocks + n, other.blocks);
        if (x != one.blocks + n) return *x < *y;
        return one.n != other.n ? one.n < other.n : a < b;
    });
}

void AttentionPlan::begin(const KernelSet &kernels, const AttentionBatch &batch, int n_workers) {
    order_sequences(batch);
    rows_.clear();
    may_join_.clear();
    for (size_t i = 0; i < order_.size(); ++i) {
        const int32_t sequence = order_[i];
        const bool is_alike = i > 0 && begin_alike(table_of(batch, order_[i - 1]), table_of(batch, sequence));
        const int n_rows = batch.row_begin[sequence + 1] - batch.row_begin[sequence];
        for (int row = 0; row < n_rows; ++row) {
            rows_.push_back({sequence, row});
            may_join_.push_back(row > 0 || is_alike);
        }
    }
    for (Layout &layout : layouts_) layout.cut(kernels, *this, batch, n_workers);
}

} // namespace quire
