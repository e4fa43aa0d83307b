// Attention over the paged KV cache (Kwon et al. 2023), by an online softmax over blocks (Milakov and Gimelshein 2018,
// Dao et al. 2022).  Plain pointers and shapes.
//
// A row's result is a function of its own sequence alone: the order of every sum is fixed by positions, not by what
// else is in the batch, by chunks or by the number of workers.
#pragma once

#include <atomic>
#include <cstdint>

namespace quire {

inline constexpr int attention_block_tokens = 32;

enum class KvType { f32, f16, bf16 };

struct AttentionShape {
    int n_head, n_kv_head, head_dim, v_head_dim;
    KvType type;
    float scale;
    float soft_cap; // 0: none
    int window;     // 0: all of the past; w: the last w tokens, the row's own among them
};

// One step.  Rows are query tokens, grouped by sequence and in order.
struct AttentionBatch {
    int n_rows;
    int n_sequences;
    const int32_t *row_begin;   // [n_sequences + 1] first row of each sequence
    const int32_t *n_kv;        // [n_sequences] tokens in the cache after this step's writes
    const int32_t *table_begin; // [n_sequences] first entry of the sequence's blocks in `tables`
    const int32_t *tables;      // block ids
    const int32_t *slots;       // [n_rows] where each row's K and V go
};

// Pools are [n_blocks][n_kv_head][32][head_dim] of the shape's type.
struct AttentionData {
    const float *q; // [n_rows, n_head, head_dim]
    const void *k_pool, *v_pool;
    const float *sinks; // [n_head] or null
    float *out;         // [n_out_rows, n_head, v_head_dim]
    int n_out_rows;     // n_rows or more; what is beyond n_rows becomes zero
};

// K [n_rows, n_kv_head, head_dim] and V of all rows into the pools; worker i of n takes every nth row.
void kv_write(const AttentionShape &shape, const AttentionBatch &batch, const float *k, const float *v, void *k_pool, void *v_pool,
              int worker, int n_workers);

// Called by every worker; pieces of work are drawn from `next`, which is 0 before the step.
void paged_attention(const AttentionShape &shape, const AttentionBatch &batch, const AttentionData &data, std::atomic<int> &next);

// What one piece of work is and where it may scribble; the form in which the kernels of an instruction set get it.
struct AttentionPiece {
    const int32_t *table; // of the sequence
    int kv_head;
    int first_row, n_rows; // of the batch
    int first_position;    // of the first row
    float *scratch;        // attention_scratch_floats() of them
};
inline constexpr int attention_tile_rows = 8;
int64_t attention_scratch_floats(const AttentionShape &shape);

struct AttentionKernels {
    void (*attend)(const AttentionShape &, const AttentionData &, const AttentionPiece &);
    void (*store_row)(KvType type, const float *from, void *pool, int64_t offset, int n); // n elements
};
extern const AttentionKernels portable_attention;
extern const AttentionKernels avx2_attention;
extern const AttentionKernels avx512_attention;

} // namespace quire
