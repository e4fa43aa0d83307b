#include "kernels/paged_attention.h"

#include <algorithm>
#include <cstring>
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

size_t padded(int n) { return (static_cast<size_t>(n) + 15) / 16 * 16; }

// Queries and accumulators, then scores and three numbers for each query: see attention_tile.h.
size_t tile_scratch_floats(const AttentionShape &shape) {
    return max_tile_queries * (padded(shape.head_dim) + padded(shape.v_head_dim) + kv_block_tokens + 16);
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

    AttentionTile tile(const AttentionData &data, float *scratch) const {
        const int heads = shape_.n_kv_head * n_parts_;
        const int part = index_ % heads % n_parts_;
        const int kv_head = index_ % heads / n_parts_;
        // The last rows have the most to do: they go first.
        const int first = (n_tiles() - 1 - index_ / heads) * tile_rows_;
        const int64_t row = batch_.row_begin[sequence_] + first;
        const int64_t head = kv_head * group_ + part * tile_heads_;
        AttentionTile tile{};
        tile.shape = &shape_;
        tile.table = batch_.tables + batch_.table_begin[sequence_];
        tile.q = data.q + (row * shape_.n_head + head) * shape_.head_dim;
        tile.out = data.out + (row * shape_.n_head + head) * shape_.v_head_dim;
        tile.sinks = data.sinks == nullptr ? nullptr : data.sinks + head;
        tile.k_pool = data.k_pool;
        tile.v_pool = data.v_pool;
        tile.kv_head = kv_head;
        tile.n_heads = std::min(tile_heads_, group_ - part * tile_heads_);
        tile.n_rows = std::min(tile_rows_, n_rows() - first);
        tile.position = batch_.n_kv[sequence_] - n_rows() + first;
        tile.scratch = scratch;
        return tile;
    }

  private:
    int n_rows() const { return batch_.row_begin[sequence_ + 1] - batch_.row_begin[sequence_]; }
    int n_tiles() const { return (n_rows() + tile_rows_ - 1) / tile_rows_; }
    int n_items() const { return n_tiles() * shape_.n_kv_head * n_parts_; }

    const AttentionShape &shape_;
    const AttentionBatch &batch_;
    int group_, tile_heads_, tile_rows_, n_parts_;
    int sequence_ = 0, first_item_ = 0, index_ = 0;
};

void write_head(KvType type, const float *from, void *pool, int64_t at, int n) {
    const AttentionKernels &kernels = attention_kernels(isa());
    switch (type) {
    case KvType::f32: std::memcpy(static_cast<float *>(pool) + at, from, static_cast<size_t>(n) * sizeof(float)); break;
    case KvType::f16: kernels.to_f16(from, static_cast<uint16_t *>(pool) + at, n); break;
    case KvType::bf16: kernels.to_bf16(from, static_cast<uint16_t *>(pool) + at, n); break;
    }
}

} // namespace

void kv_write_row(const AttentionShape &shape, int64_t slot, const float *k, const float *v, void *k_pool,
                  void *v_pool) {
    const int64_t block = slot / kv_block_tokens;
    const int64_t offset = slot % kv_block_tokens;
    for (int64_t head = 0; head < shape.n_kv_head; ++head) {
        const int64_t to = (block * shape.n_kv_head + head) * kv_block_tokens + offset;
        write_head(shape.type, k + head * shape.head_dim, k_pool, to * shape.head_dim, shape.head_dim);
        write_head(shape.type, v + head * shape.v_head_dim, v_pool, to * shape.v_head_dim, shape.v_head_dim);
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
    Items items(shape, batch);
    int index = next.fetch_add(1, std::memory_order_relaxed);
    while (items.seek(index)) {
        kernels.attend(items.tile(data, scratch));
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
