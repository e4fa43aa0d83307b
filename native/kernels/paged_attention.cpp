#include "kernels/paged_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attention_kernels.h"

namespace quire {
namespace {

// 64-byte aligned memory of this thread, kept for its next call.
float *thread_scratch(size_t n_floats) {
    static thread_local std::vector<float> memory;
    constexpr size_t alignment_floats = 64 / sizeof(float);
    if (memory.size() < n_floats + alignment_floats) memory.resize(n_floats + alignment_floats);
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + ((64 - address % 64) % 64) / sizeof(float);
}

// Queries and sums, then scores and five numbers for each query: see attention_tile.h.
size_t tile_scratch_floats(const AttentionShape &shape) {
    const int floats = padded_floats(shape.head_dim) + 2 * padded_floats(shape.v_head_dim) + kv_step_tokens + 5;
    return static_cast<size_t>(max_tile_queries) * static_cast<size_t>(floats);
}

// How a step is cut into work items.  Any cut gives the same bits; this one bounds a tile to max_tile_queries.
class Items {
  public:
    Items(const AttentionShape &shape, const AttentionBatch &batch)
        : shape_(shape), batch_(batch), group_(shape.n_head / shape.n_kv_head),
          tile_heads_(std::min(group_, max_tile_queries)), tile_rows_(max_tile_queries / tile_heads_),
          n_parts_((group_ + tile_heads_ - 1) / tile_heads_) {}

    // Moves to item `index`, which must not be below the last one asked for; false when there are fewer.
    bool seek(int index) {
        while (sequence_ < batch_.n_sequences && index >= first_item_ + n_items()) {
            first_item_ += n_items();
            ++sequence_;
        }
        index_ = index - first_item_;
        return sequence_ < batch_.n_sequences;
    }
    bool is_first_after_last(int index) const { return index == first_item_; }

    AttentionTile tile(const AttentionData &data, TileQuery *queries) const {
        const int heads = shape_.n_kv_head * n_parts_;
        const int part = index_ % heads % n_parts_;
        // The last rows have the most to do: they go first.
        const int first = (n_tiles() - 1 - index_ / heads) * tile_rows_;
        AttentionTile tile{};
        tile.shape = &shape_;
        tile.k_pool = data.k_pool;
        tile.v_pool = data.v_pool;
        tile.kv_head = index_ % heads / n_parts_;
        tile.queries = queries;
        const int first_head = tile.kv_head * group_ + part * tile_heads_;
        const int n_heads = std::min(tile_heads_, group_ - part * tile_heads_);
        const int end = std::min(first + tile_rows_, n_rows());
        for (int row = first; row < end; ++row) {
            for (int head = first_head; head < first_head + n_heads; ++head)
                queries[tile.n_queries++] = query(data, row, head);
        }
        const int newest = queries[tile.n_queries - 1].position, oldest = queries[0].position - shape_.window + 1;
        tile.first_chunk = shape_.window > 0 && oldest > 0 ? oldest / kv_chunk_tokens : 0;
        tile.last_chunk = newest / kv_chunk_tokens + 1;
        return tile;
    }

  private:
    TileQuery query(const AttentionData &data, int row, int head) const {
        const int64_t at = int64_t{batch_.row_begin[sequence_] + row} * shape_.n_head + head;
        return {data.q + at * shape_.head_dim, data.out + at * shape_.v_head_dim,
                batch_.tables + batch_.table_begin[sequence_], batch_.n_kv[sequence_] - n_rows() + row,
                data.sinks == nullptr ? -std::numeric_limits<float>::infinity() : data.sinks[head]};
    }
    int n_rows() const { return batch_.row_begin[sequence_ + 1] - batch_.row_begin[sequence_]; }
    int n_tiles() const { return (n_rows() + tile_rows_ - 1) / tile_rows_; }
    int n_items() const { return n_tiles() * shape_.n_kv_head * n_parts_; }

    const AttentionShape &shape_;
    const AttentionBatch &batch_;
    int group_, tile_heads_, tile_rows_, n_parts_;
    int sequence_ = 0, first_item_ = 0, index_ = 0;
};

void write_values(KvType type, const float *from, void *pool, int64_t at, int n) {
    const AttentionKernels &kernels = attention_kernels(isa());
    switch (type) {
    case KvType::f32: std::memcpy(static_cast<float *>(pool) + at, from, static_cast<size_t>(n) * sizeof(float)); break;
    case KvType::f16: kernels.to_f16(from, static_cast<uint16_t *>(pool) + at, n); break;
    case KvType::bf16: kernels.to_bf16(from, static_cast<uint16_t *>(pool) + at, n); break;
    }
}

// A token's K is a column of its block.
template <class T> void scatter(const T *from, void *pool, int64_t at, int n) {
    T *to = static_cast<T *>(pool) + at;
    for (int64_t d = 0; d < n; ++d) to[d * kv_block_tokens] = from[d];
}

void write_keys(KvType type, const float *from, void *pool, int64_t at, int n) {
    if (type == KvType::f32) return scatter(from, pool, at, n);
    constexpr int piece = 128;
    uint16_t rounded[piece];
    for (int d = 0; d < n; d += piece) {
        const int some = std::min(piece, n - d);
        write_values(type, from + d, rounded, 0, some);
        scatter(rounded, pool, at + int64_t{d} * kv_block_tokens, some);
    }
}

} // namespace

void kv_write_row(const AttentionShape &shape, int64_t slot, const float *k, const float *v, void *k_pool,
                  void *v_pool) {
    const int64_t block = slot / kv_block_tokens;
    const int64_t offset = slot % kv_block_tokens;
    for (int64_t head = 0; head < shape.n_kv_head; ++head) {
        const int64_t at = (block * shape.n_kv_head + head) * kv_block_tokens;
        write_keys(shape.type, k + head * shape.head_dim, k_pool, at * shape.head_dim + offset, shape.head_dim);
        write_values(shape.type, v + head * shape.v_head_dim, v_pool, (at + offset) * shape.v_head_dim,
                     shape.v_head_dim);
    }
}

void kv_write(const AttentionShape &shape, const AttentionBatch &batch, const float *k, const float *v, void *k_pool,
              void *v_pool, int worker, int n_workers) {
    const int64_t begin = int64_t{batch.n_rows} * worker / n_workers;
    const int64_t end = int64_t{batch.n_rows} * (worker + 1) / n_workers;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t head = row * shape.n_kv_head;
        kv_write_row(shape, batch.slots[row], k + head * shape.head_dim, v + head * shape.v_head_dim, k_pool, v_pool);
    }
}

void paged_attention(const AttentionShape &shape, const AttentionBatch &batch, const AttentionData &data,
                     std::atomic<int> &next) {
    const AttentionKernels &kernels = attention_kernels(isa());
    float *scratch = thread_scratch(tile_scratch_floats(shape));
    TileQuery queries[max_tile_queries];
    Items items(shape, batch);
    int index = next.fetch_add(1, std::memory_order_relaxed);
    while (items.seek(index)) {
        AttentionTile tile = items.tile(data, queries);
        tile.scratch = scratch;
        kernels.attend(tile);
        index = next.fetch_add(1, std::memory_order_relaxed);
    }
    // One more item: the padding.
    if (items.is_first_after_last(index) && data.n_out_rows > batch.n_rows) {
        const size_t row_floats = static_cast<size_t>(shape.n_head) * static_cast<size_t>(shape.v_head_dim);
        const auto n_padding = static_cast<size_t>(data.n_out_rows - batch.n_rows);
        std::memset(data.out + static_cast<size_t>(batch.n_rows) * row_floats, 0,
                    n_padding * row_floats * sizeof(float));
    }
}

} // namespace quire
