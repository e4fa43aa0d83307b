// Attention over a paged KV cache on the CPU, and writing to that cache.  Plain pointers and shapes; no allocation
// after a thread's first call of a size.
//
// A block holds 32 tokens.  Per layer K is [n_blocks, n_kv_head, head_dim, 32], so that one load takes a dimension of all
// tokens and scores need no sum over lanes; V is [n_blocks, n_kv_head, 32, v_head_dim].  A slot is block * 32 + offset in
// the block.  In the 8-bit cache K of a block and head is [head_dim / 4, 32, 4] codes, the last dimensions filled up with
// zeros, and V [32, v_head_dim], each followed by scales (core/q8_layout.h); queries are rounded to 8 bits for scores.  So
// they are where K has 4 or 5 bits (low_bits.h).
//
// The bits of a row's result depend on its own query, position and keys alone: not on the other rows and sequences, on
// how a prompt is cut into steps, nor on the number of workers.  (They do depend on the instruction set.)
#pragma once

#include <atomic>
#include <cstdint>

#include "core/block_tokens.h"
#include "kernels/kernel_set.h"

namespace quire {

// The last two: codes of 5 and 4 bits with scales for 32 numbers each, as ggml's types of these names have them.
enum class KvType { f32, f16, bf16, q8, q5_1, q4_0 };

static constexpr bool is_low_bits(KvType type) { return type == KvType::q5_1 || type == KvType::q4_0; }
static constexpr bool is_coded(KvType type) { return type == KvType::q8 || is_low_bits(type); }

class AttentionPlan;

struct AttentionShape {
    int n_head, n_kv_head; // n_head is a multiple of n_kv_head; heads [i * group, (i + 1) * group) read kv head i
    int head_dim, v_head_dim; // of K (and queries), of V (and the output); any size from 1
    // Of the cache.  Where they differ, both are F16 or coded; where either has 4 or 5 bits, its heads divide by 32.
    KvType k_type, v_type;
    float scale; // scores are scale * (q . k)
    float soft_cap = 0.0F; // c: scores become c * tanh(score / c); 0: not capped
    int window = 0; // w: the last w positions, the row's own included; 0: all
    int chunk = 0; // c: only positions of the row's own chunk [i * c, (i + 1) * c); 0: all
    // Later positions are seen, too; a window w then reaches w / 2 positions to either side.
    bool both_ways = false;
    // Latent attention: V is the first v_head_dim dimensions of K, of one kv head, and there is no pool of it.
    bool v_in_k = false;
};

// Positions [oldest, newest] of a sequence of n_kv tokens that a row sees.
struct SeenTokens {
    int oldest, newest;
};
inline SeenTokens seen_tokens(const AttentionShape &shape, int position, int n_kv) {
    if (shape.both_ways && shape.window == 0) return {0, n_kv - 1}; // wherever the row is: it may be of another text
    if (shape.both_ways) {
        const int reach = shape.window / 2;
        return {position > reach ? position - reach : 0, position < n_kv - reach ? position + reach : n_kv - 1};
    }
    if (shape.chunk > 0) return {position / shape.chunk * shape.chunk, position};
    return {shape.window > 0 && position >= shape.window ? position - shape.window + 1 : 0, position};
}

// One step.  Rows are query tokens, grouped by sequence, in order.
struct AttentionBatch {
    int n_rows; // real rows; arrays of rows may be longer (padding)
    int n_sequences;
    const int32_t *row_begin; // [n_sequences + 1] first row of each sequence
    // [n_sequences] tokens in the cache once this step's are written; row i of sequence s has position
    // n_kv[s] - (row_begin[s + 1] - row_begin[s]) + i
    const int32_t *n_kv;
    const int32_t *table_begin; // [n_sequences] first entry of each sequence's block table in `tables`
    const int32_t *tables; // block ids
    const int32_t *slots; // [n_rows] where each row's K and V go
    const AttentionPlan *plan = nullptr; // of this batch; paged_attention reads it, kv_write does not
};

// What a head's scores get for how far a token is from the row's own: ALiBi, T5's buckets.  Column n - 1, and of attention
// both ways the middle one, is the row's own position; tokens beyond the ends count as the last ones there.
struct DistanceBias {
    const float *columns = nullptr; // [n_head, n]; null: none
    int n = 0;
    int own(bool both_ways) const { return both_ways ? n / 2 : n - 1; }
};

struct AttentionData {
    const float *q; // [rows, n_head, head_dim]
    const void *k_pool, *v_pool; // v_pool is not read where V is in K
    const float *sinks; // [n_head] a score per head that joins the softmax and has no value; or null
    DistanceBias bias;
    float *out; // [n_out_rows, n_head, v_head_dim]
    int n_out_rows; // at least n_rows; the rows after n_rows are padding and become zero
};

// Some tokens and where they go.
struct KvRows {
    int n;
    const int32_t *slots; // [n]
    const float *k, *v; // [n, n_kv_head, head_dim], [n, n_kv_head, v_head_dim]; v is null where V is in K
};

// Write their K and V, rounding to nearest even.  Threads may write different slots at a time.
void kv_write_rows(const KernelSet &kernels, const AttentionShape &shape, const KvRows &rows, void *k_pool,
                   void *v_pool);

// Write K and V of the real rows, k [rows, n_kv_head, head_dim], v [rows, n_kv_head, v_head_dim], to their slots.  Each
// of n_workers threads calls this with its own index and writes a share of the rows.
void kv_write(const KernelSet &kernels, const AttentionShape &shape, const AttentionBatch &batch, const float *k,
              const float *v, void *k_pool, void *v_pool, int worker, int n_workers);

// Poison (core/poison.h) what the tokens of a step leave of their blocks, which a sequence's next tokens will fill.
void kv_poison_rest(const AttentionShape &shape, const AttentionBatch &batch, void *k_pool, void *v_pool);

// Attention of every row to what it sees of its sequence's cache.  Each worker calls this with the same arguments; work items
// come from batch.plan by `next`, which the caller sets to zero before, so that a late worker delays only its own item.
void paged_attention(const KernelSet &kernels, const AttentionShape &shape, const AttentionBatch &batch,
                     const AttentionData &data, std::atomic<int> &next);

} // namespace quire
