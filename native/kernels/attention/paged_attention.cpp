#include "kernels/attention/paged_attention.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/large_pages.h"
#include "core/poison.h"
#include "core/q8_layout.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/attention/low_bits.h"
#include "kernels/attention/rotation.h"

namespace quire {
namespace {

// This thread's scratch memory, 64-byte aligned and kept for its next call.
float *thread_scratch(size_t n_floats) {
    static thread_local AlignedMemory memory;
    return reinterpret_cast<float *>(memory.at_least(n_floats * sizeof(float)));
}

// The scratch memory of attention_tile.h: queries and sums, scores and two numbers per query, then the values of a
// step.
size_t usual_scratch_floats(const AttentionShape &shape) {
    const int floats = padded_floats(shape.head_dim) + 2 * padded_floats(shape.v_head_dim) + kv_step_tokens + 2;
    int of_values = kv_step_tokens / 2 * ((shape.v_head_dim + 31) / 32 * 32);
    // Copied or widened values of a step, and the keys of a block.
    if (shape.v_in_k || is_low_bits(shape.v_type)) of_values += kv_step_tokens * padded_floats(shape.v_head_dim + 1);
    if (is_low_bits(shape.k_type)) of_values += static_cast<int>(LowBitsLayout::wide_bytes(shape.head_dim) / 4);
    return static_cast<size_t>(max_tile_queries) * static_cast<size_t>(floats) + static_cast<size_t>(of_values);
}

size_t scratch_floats(const AttentionShape &shape, const AttentionKernels &kernels) {
    if (kernels.scratch_floats == nullptr) return usual_scratch_floats(shape);
    const auto own = static_cast<size_t>(kernels.scratch_floats(shape));
    return kernels.attend_few == nullptr ? own : std::max(own, usual_scratch_floats(shape));
}

// The size of a tile's rotated queries, which K of 4 or 5 bits needs.
size_t rotated_floats(const AttentionShape &shape) {
    return is_low_bits(shape.k_type) ? static_cast<size_t>(max_tile_queries) * static_cast<size_t>(shape.head_dim) : 0;
}

// One worker's state while it runs items of a plan.
class Worker {
  public:
    Worker(const KernelSet &kernels, const AttentionShape &shape, const AttentionBatch &batch,
           const AttentionData &data, const AttentionPlan &plan)
        : shape_(shape), batch_(batch), data_(data), plan_(plan),
          kernels_(kernels.attention(shape.k_type, shape.v_type)),
          rotated_(thread_scratch(rotated_floats(shape) + scratch_floats(shape, kernels_))),
          scratch_(rotated_ + rotated_floats(shape)),
          few_queries_(kernels.is_deterministic() ? 0 : kernels_.few_queries) {}

    void attend(const AttentionPlan::Item &item) {
        AttentionTile tile{};
        tile.shape = &shape_;
        tile.k_pool = data_.k_pool;
        tile.v_pool = data_.v_pool;
        tile.kv_head = item.kv_head;
        tile.n_kv_heads = item.n_kv_heads;
        tile.queries = queries_;
        for (int i = item.tile->first_row; i < item.tile->first_row + item.tile->n_rows; ++i) {
            for (int head = item.first_head; head < item.first_head + item.n_heads; ++head)
                queries_[tile.n_queries++] = query(plan_.rows()[static_cast<size_t>(i)], head);
        }
        if (is_low_bits(shape_.k_type)) rotate_queries(tile.n_queries);
        tile.first_chunk = item.first_chunk;
        tile.last_chunk = item.last_chunk;
        tile.scratch = scratch_;
        const bool few = tile.n_queries <= few_queries_ * tile.n_kv_heads;
        const auto attend_tile = few ? kernels_.attend_few : kernels_.attend;
        if (item.partials == nullptr) {
            attend_tile(tile);
            return rotate_results(tile.n_queries);
        }
        const int first = item.tile->first_chunk, n_chunks = item.tile->last_chunk - first;
        tile.partials = item.partials + int64_t{item.first_chunk - first} * tile.n_queries * partial_floats(shape_);
        attend_tile(tile);
        // The worker that finishes the last chunk merges all of them.
        if (item.counter->fetch_add(1, std::memory_order_acq_rel) + 1 < n_chunks) return;
        item.counter->store(0, std::memory_order_relaxed);
        tile.partials = item.partials;
        tile.first_chunk = first;
        tile.last_chunk = item.tile->last_chunk;
        kernels_.merge(tile);
        rotate_results(tile.n_queries);
    }

  private:
    void rotate_queries(int n) {
        for (int i = 0; i < n; ++i) {
            float *q = rotated_ + int64_t{i} * shape_.head_dim;
            std::memcpy(q, queries_[i].q, static_cast<size_t>(shape_.head_dim) * sizeof(float));
            rotate_head(q, shape_.head_dim, key_rotated_together(shape_));
            queries_[i].q = q;
        }
    }
    void rotate_results(int n) const {
        if (!is_low_bits(shape_.v_type)) return;
        for (int i = 0; i < n; ++i) rotate_head(queries_[i].out, shape_.v_head_dim, value_rotated_together(shape_));
    }

    TileQuery query(AttentionPlan::Row row, int head) const {
        const int32_t *row_begin = batch_.row_begin + row.sequence;
        const int64_t at = int64_t{row_begin[0] + row.row} * shape_.n_head + head;
        SeenTokens seen = seen_tokens(shape_, batch_, row.sequence, row.row);
        DistanceBias bias = data_.bias;
        if (bias.columns != nullptr) bias.columns += int64_t{head} * bias.n;
        int first_column = bias.own(shape_.both_ways) - batch_.position(row.sequence, row.row);
        if (data_.picked.rows != nullptr) {
            const int64_t n = data_.picked.n;
            const int64_t own_head = data_.picked.n_head == 1 ? 0 : head;
            bias = {data_.picked.rows + ((row_begin[0] + row.row) * data_.picked.n_head + own_head) * n,
                    static_cast<int>(n)};
            first_column = 0;
        }
        const int32_t *table = batch_.tables + batch_.table_begin[row.sequence];
        if (const PickedBlocks &blocks = data_.blocks; blocks.rows != nullptr) {
            const int64_t picking_head = int64_t{head} * blocks.n_head / shape_.n_head;
            const int32_t *own =
                blocks.rows + ((int64_t{row_begin[0]} + row.row) * blocks.n_head + picking_head) * blocks.n;
            seen = {0, own[0] - 1};
            table = own + 1;
        }
        return {data_.q + at * shape_.head_dim,
                data_.out + at * shape_.v_head_dim,
                table,
                seen.oldest,
                seen.newest,
                data_.sinks == nullptr ? -std::numeric_limits<float>::infinity() : data_.sinks[head],
                bias,
                first_column};
    }

    const AttentionShape &shape_;
    const AttentionBatch &batch_;
    const AttentionData &data_;
    const AttentionPlan &plan_;
    const AttentionKernels &kernels_;
    float *rotated_, *scratch_;
    int few_queries_;
    TileQuery queries_[max_tile_queries];
};

// A token's K is a column of its block.
template <class T> void scatter(const T *from, T *to, int n) {
    for (int64_t d = 0; d < n; ++d) to[d * kv_block_tokens] = from[d];
}

constexpr int piece = 128; // dimensions converted at a time

// Writes rows of one head's K or V; `kernels` converts to any type.
struct HeadRows {
    const AttentionKernels &kernels;
    KvType type;
    int dim;
    bool are_keys;
    int rotated; // dimensions rotated together, for 4 and 5 bits

    // `rows` is the start of the head's K or V in the block, `offset` the token's place in the block.
    void write(const float *from, uint8_t *rows, int64_t offset) const {
        switch (type) {
        case KvType::f32: return write_floats(from, reinterpret_cast<float *>(rows), offset);
        case KvType::f16: return write_halves(kernels.to_f16, from, reinterpret_cast<uint16_t *>(rows), offset);
        case KvType::bf16: return write_halves(kernels.to_bf16, from, reinterpret_cast<uint16_t *>(rows), offset);
        case KvType::q8: return write_q8(from, rows, offset);
        default: write_low_bits(from, rows, offset);
        }
    }

  private:
    void write_floats(const float *from, float *rows, int64_t offset) const {
        if (are_keys) return scatter(from, rows + offset, dim);
        std::memcpy(rows + offset * dim, from, static_cast<size_t>(dim) * sizeof(float));
    }
    void write_halves(void (*convert)(const float *, uint16_t *, int), const float *from, uint16_t *rows,
                      int64_t offset) const {
        if (!are_keys) return convert(from, rows + offset * dim, dim);
        uint16_t rounded[piece];
        for (int d = 0; d < dim; d += piece) {
            const int some = std::min(piece, dim - d);
            convert(from + d, rounded, some);
            scatter(rounded, rows + int64_t{d} * kv_block_tokens + offset, some);
        }
    }
    void write_low_bits(const float *from, uint8_t *rows, int64_t offset) const {
        static thread_local std::vector<float> head;
        head.assign(from, from + dim);
        rotate_head(head.data(), dim, rotated);
        const auto write_row = are_keys ? write_low_bits_key : write_low_bits_value;
        write_row(type, kernels.to_f16, head.data(), dim, offset, rows);
    }
    void write_q8(const float *from, uint8_t *rows, int64_t offset) const {
        static thread_local std::vector<int8_t> codes;
        codes.assign(q8_codes_bytes(dim, 1), 0);
        const float scale = kernels.to_q8(from, codes.data(), dim);
        std::memcpy(rows + q8_codes_bytes(dim, kv_block_tokens) + static_cast<size_t>(offset) * sizeof scale, &scale,
                    sizeof scale);
        if (!are_keys) {
            std::memcpy(rows + offset * dim, codes.data(), static_cast<size_t>(dim));
            return;
        }
        for (size_t d = 0; d < codes.size(); d += q8_group)
            std::memcpy(rows + d * kv_block_tokens + offset * q8_group, codes.data() + d, q8_group);
    }
};

size_t head_bytes(KvType type, int dim) {
    if (type == KvType::q8) return q8_head_bytes(dim, kv_block_tokens);
    if (is_low_bits(type)) return static_cast<size_t>(LowBitsLayout(type, dim).bytes());
    return static_cast<size_t>(dim) * kv_block_tokens * (type == KvType::f32 ? 4 : 2);
}

// Poison slots [offset, 32) of a block and head in each of `n` contiguous runs of 32 slots of `slot_bytes`.
void poison_slots(uint8_t *runs, size_t n, size_t slot_bytes, size_t offset) {
    for (size_t i = 0; i < n; ++i)
        poison(runs + (i * kv_block_tokens + offset) * slot_bytes, (kv_block_tokens - offset) * slot_bytes);
}

// Poison K or V of a block and head from slot `offset` on.  For codes it is enough to poison their scales.
void poison_rest(KvType type, int dim, bool are_keys, uint8_t *rows, size_t offset) {
    if (type == KvType::q8) return poison_slots(rows + q8_codes_bytes(dim, kv_block_tokens), 1, sizeof(float), offset);
    if (is_low_bits(type)) {
        const LowBitsLayout layout(type, dim);
        const auto n = static_cast<size_t>(layout.n_groups()) * (layout.has_fifth ? 2 : 1);
        return poison_slots(rows + layout.scales(), n, sizeof(uint16_t), offset);
    }
    const size_t element = type == KvType::f32 ? 4 : 2;
    if (are_keys) return poison_slots(rows, static_cast<size_t>(dim), element, offset);
    poison_slots(rows, 1, static_cast<size_t>(dim) * element, offset);
}

} // namespace

void kv_poison_rest(const AttentionShape &shape, const AttentionBatch &batch, void *k_pool, void *v_pool) {
    const size_t k_bytes = head_bytes(shape.k_type, shape.head_dim);
    const size_t v_bytes = head_bytes(shape.v_type, shape.v_head_dim);
    for (int row = 0; row < batch.n_rows; ++row) {
        const int32_t slot = batch.slots[row];
        const auto offset = static_cast<size_t>(slot % kv_block_tokens) + 1;
        if (offset == kv_block_tokens || (row + 1 < batch.n_rows && batch.slots[row + 1] == slot + 1)) continue;
        for (int head = 0; head < shape.n_kv_head; ++head) {
            const size_t at = static_cast<size_t>(slot / kv_block_tokens) * static_cast<size_t>(shape.n_kv_head) +
                              static_cast<size_t>(head);
            poison_rest(shape.k_type, shape.head_dim, true, static_cast<uint8_t *>(k_pool) + at * k_bytes, offset);
            if (shape.v_in_k) continue;
            poison_rest(shape.v_type, shape.v_head_dim, false, static_cast<uint8_t *>(v_pool) + at * v_bytes, offset);
        }
    }
}

void kv_write_rows(const KernelSet &set, const AttentionShape &shape, const KvRows &rows, void *k_pool, void *v_pool) {
    const AttentionKernels &kernels = set.attention(KvType::f32, KvType::f32);
    const HeadRows keys{kernels, shape.k_type, shape.head_dim, true, key_rotated_together(shape)};
    const HeadRows values{kernels, shape.v_type, shape.v_head_dim, false, value_rotated_together(shape)};
    const size_t k_bytes = head_bytes(shape.k_type, shape.head_dim);
    const size_t v_bytes = head_bytes(shape.v_type, shape.v_head_dim);
    // Head by head, as each token touches every line of a head's keys, which thus stay in the first-level cache.
    for (int64_t head = 0; head < shape.n_kv_head; ++head) {
        for (int i = 0; i < rows.n; ++i) {
            const int64_t block = rows.slots[i] / kv_block_tokens, offset = rows.slots[i] % kv_block_tokens;
            const auto at = static_cast<size_t>(block * shape.n_kv_head + head);
            const int64_t row = int64_t{i} * shape.n_kv_head + head;
            keys.write(rows.k + row * shape.head_dim, static_cast<uint8_t *>(k_pool) + at * k_bytes, offset);
            if (shape.v_in_k) continue;
            values.write(rows.v + row * shape.v_head_dim, static_cast<uint8_t *>(v_pool) + at * v_bytes, offset);
        }
    }
}

void kv_write(const KernelSet &kernels, const AttentionShape &shape, const AttentionBatch &batch, const float *k,
              const float *v, void *k_pool, void *v_pool, int worker, int n_workers) {
    const int64_t begin = int64_t{batch.n_rows} * worker / n_workers;
    const int64_t end = int64_t{batch.n_rows} * (worker + 1) / n_workers;
    const int64_t head = begin * shape.n_kv_head;
    const KvRows rows{static_cast<int>(end - begin), batch.slots + begin, k + head * shape.head_dim,
                      shape.v_in_k ? nullptr : v + head * shape.v_head_dim};
    kv_write_rows(kernels, shape, rows, k_pool, v_pool);
}

void paged_attention(const KernelSet &kernels, const AttentionShape &shape, const AttentionBatch &batch,
                     const AttentionData &data, std::atomic<int> &next) {
    const AttentionPlan::Layout *layout = batch.plan->find(shape);
    if (layout == nullptr) throw InternalError("attention", "the layer's shape was not added to the plan");
    Worker worker(kernels, shape, batch, data, *batch.plan);
    int index = next.fetch_add(1, std::memory_order_relaxed);
    for (; index < layout->n_items(); index = next.fetch_add(1, std::memory_order_relaxed))
        worker.attend(layout->item(index));
    // The last item clears the padding.
    if (index == layout->n_items() && data.n_out_rows > batch.n_rows) {
        const size_t row_floats = static_cast<size_t>(shape.n_head) * static_cast<size_t>(shape.v_head_dim);
        const auto n_padding = static_cast<size_t>(data.n_out_rows - batch.n_rows);
        std::memset(data.out + static_cast<size_t>(batch.n_rows) * row_floats, 0,
                    n_padding * row_floats * sizeof(float));
    }
}

} // namespace quire
