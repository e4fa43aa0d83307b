// Attention over a paged KV cache on the CPU, and writing to that cache.  It takes plain pointers and shapes, and
// allocates only when a thread first sees a size.
//
// A block holds 32 tokens.  In each layer, K is [n_blocks, n_kv_head, head_dim, 32], so that one load reads a dimension
// of all tokens and scores need no sum over lanes; V is [n_blocks, n_kv_head, 32, v_head_dim].  A slot is block * 32 +
// offset in the block.  In the 8-bit cache, K of a block and head is [head_dim / 4, 32, 4] codes, padded with zeros,
// and V is [32, v_head_dim], each followed by scales (core/q8_layout.h).  Queries are rounded to 8 bits for scores if K
// has 8 bits or fewer; see low_bits.h for 4 and 5 bits.
//
// The bits of a row's result depend only on its own query, position and keys, and on the instruction set: not on other
// rows and sequences, on how a prompt is cut into steps, or on the number of workers.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/block_tokens.h"
#include "kernels/kernel_set.h"

namespace quire {

// q5_1 and q4_0 have codes of 5 and 4 bits with a scale per 32 numbers, like ggml's types of these names.
enum class KvType { f32, f16, bf16, q8, q5_1, q4_0 };

static constexpr bool is_low_bits(KvType type) { return type == KvType::q5_1 || type == KvType::q4_0; }
static constexpr bool is_coded(KvType type) { return type == KvType::q8 || is_low_bits(type); }

class AttentionPlan;

struct AttentionShape {
    int n_head, n_kv_head; // n_head is a multiple of n_kv_head; heads [i * group, (i + 1) * group) read kv head i
    int head_dim, v_head_dim; // size of K and queries, of V and the output; 1 or more
    // The types of the cache.  If they differ, both are F16 or coded.  Heads of a type of 4 or 5 bits are divisible by
    // 32.
    KvType k_type, v_type;
    float scale; // scores are scale * (q . k)
    float soft_cap = 0.0F; // c caps scores to c * tanh(score / c); 0: no cap
    int window = 0; // w limits a row to the last w positions, including its own; 0: no limit
    int chunk = 0; // c limits a row to its own chunk of positions, [i * c, (i + 1) * c); 0: no limit
    // Rows see later positions, too; a window w then reaches w / 2 positions to either side.
    bool both_ways = false;
    // Latent attention: there is one kv head, V is the first v_head_dim dimensions of K, and there is no pool of V.
    bool v_in_k = false;
    // Rows attend to the tokens of picked blocks (PickedBlocks), to at most so many; 0: to all that they see.
    int picked_tokens = 0;
};

// The rows of one step.  Rows are query tokens in order, grouped by sequence.
struct AttentionBatch {
    int n_rows; // real rows; arrays of rows may be longer (padding)
    int n_sequences;
    const int32_t *row_begin; // [n_sequences + 1] first row of each sequence
    // [n_sequences] tokens in the cache, including this step's; row i of sequence s has position
    // n_kv[s] - (row_begin[s + 1] - row_begin[s]) + i
    const int32_t *n_kv;
    const int32_t *table_begin; // [n_sequences] first entry of each sequence's block table in `tables`
    const int32_t *tables; // block ids
    const int32_t *slots; // [n_rows] the slot for each row's K and V
    const AttentionPlan *plan = nullptr; // the plan for this batch; kv_write does not need it
    // [n_rows] the last position that each row sees, ascending within a sequence; null: its own
    const int32_t *last_visible = nullptr;
    // `row` counts from the first row of the sequence.
    int position(int32_t sequence, int32_t row) const {
        return n_kv[sequence] - (row_begin[sequence + 1] - row_begin[sequence]) + row;
    }
};

// The positions [oldest, newest] that a row sees.
struct SeenTokens {
    int oldest, newest;
};
inline SeenTokens seen_tokens(const AttentionShape &shape, const AttentionBatch &batch, int32_t sequence, int32_t row) {
    const int position = batch.position(sequence, row), n_kv = batch.n_kv[sequence];
    if (shape.both_ways && shape.window == 0)
        return {0, n_kv - 1}; // whatever the row's position, which may be one in another text
    if (shape.both_ways) {
        const int reach = shape.window / 2;
        return {position > reach ? position - reach : 0, position < n_kv - reach ? position + reach : n_kv - 1};
    }
    const int last = batch.last_visible == nullptr ? position : batch.last_visible[batch.row_begin[sequence] + row];
    if (shape.chunk > 0) return {position / shape.chunk * shape.chunk, last};
    return {shape.window > 0 && position >= shape.window ? position - shape.window + 1 : 0, last};
}

// A bias on a head's scores that depends on a token's distance from the row: ALiBi, T5's buckets.  The row's own
// position is column n - 1, or the middle one if rows see both ways; tokens beyond the ends use the last column there.
struct DistanceBias {
    const float *columns = nullptr; // [n_head, n]; null means no bias
    int n = 0;
    int own(bool both_ways) const { return both_ways ? n / 2 : n - 1; }
};

// Numbers added to a row's scores for each token from position 0 on, of each head or the same for all.
struct RowBias {
    const float *rows = nullptr; // [rows, n_head, n]; null means nothing
    int64_t n = 0;
    int n_head = 1; // 1: the same for all
};

// The blocks that each row and head attends to: how many tokens it sees of them, then a block table.  All but the last
// block are seen whole.
struct PickedBlocks {
    const int32_t *rows = nullptr; // [rows, n_head, n]; null means none are picked
    int64_t n = 0;
    int n_head = 1; // each is for as many heads in a row
};

struct AttentionData {
    const float *q; // [rows, n_head, head_dim]
    const void *k_pool, *v_pool; // v_pool is not read if V is in K
    const float *sinks; // [n_head] a score without a value that is part of each head's softmax; or null
    DistanceBias bias;
    RowBias picked; // excludes tokens or relates them; not with `bias`
    PickedBlocks blocks; // where the shape has picked_tokens; with neither
    float *out; // [n_out_rows, n_head, v_head_dim]
    int n_out_rows; // at least n_rows; the rows from n_rows on are padding and are set to zero
};

// K and V of some tokens, and their slots.
struct KvRows {
    int n;
    const int32_t *slots; // [n]
    const float *k, *v; // [n, n_kv_head, head_dim], [n, n_kv_head, v_head_dim]; v is null if V is in K
};

// Write K and V of rows, rounding to nearest even.  Threads may write different slots at the same time.
void kv_write_rows(const KernelSet &kernels, const AttentionShape &shape, const KvRows &rows, void *k_pool,
                   void *v_pool);

// Write K and V of a batch's rows, k [rows, n_kv_head, head_dim], v [rows, n_kv_head, v_head_dim], to their slots.
// Each of n_workers threads calls this with its own index and writes its share of the rows.
void kv_write(const KernelSet &kernels, const AttentionShape &shape, const AttentionBatch &batch, const float *k,
              const float *v, void *k_pool, void *v_pool, int worker, int n_workers);

// Poison (core/poison.h) the rest of the blocks that a step's tokens are in, which the next tokens will fill.
void kv_poison_rest(const AttentionShape &shape, const AttentionBatch &batch, void *k_pool, void *v_pool);

// Compute the attention of every row of a batch.  Each worker calls this with the same arguments.  Work items of
// batch.plan are taken from the counter `next`, which the caller sets to zero before, so that a late worker delays only
// its own item.
void paged_attention(const KernelSet &kernels, const AttentionShape &shape, const AttentionBatch &batch,
                     const AttentionData &data, std::atomic<int> &next);

} // namespace quire
