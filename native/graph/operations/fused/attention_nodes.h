// Nodes of attention on the CPU: what comes first, and attention itself.
#pragma once

#include "graph/operations/fused/heads.h"
#include "kernels/attention/paged_attention.h"

namespace quire {

// UnsupportedError where there are no kernels for it.
KvType kv_type(DType dtype);

// Where K and V lie: in the cache, or in values of the program.
struct AttentionPools {
    void *k, *v;
    CpuValue *own_k, *own_v; // in the place of k and v, unless null
    void *k_data() const { return own_k != nullptr ? own_k->data : k; }
    void *v_data() const { return own_v != nullptr ? own_v->data : v; }
};

// Queries and keys are normed and rotated, keys and values written; then the rows attend.  `i`: an operation of q, k,
// v; of q and k, where V is in K; or of q alone where K and V are written already.  What picks tokens comes after them.
struct AttentionPlace {
    int group; // the cache's, or the one after them
    AttentionShape shape;
    AttentionPools pools;
    const float *sinks; // [n_head], or null
    DistanceBias bias;
    // Added to each row's scores, for every token (kernels/attention/index_scores.h); where the shape has picked_tokens,
    // the blocks that it attends to (block_choice.h); or null.
    CpuValue *picked;
    int picked_heads = 1; // the heads that `picked` tells apart; 1: it is the same for all
};
void add_attention(CpuLowering &lowering, int i, const AttentionPlace &place);
// Writes the rows `k` of a layer without V to the cache, as they are.
void add_key_rows(CpuLowering &lowering, const AttentionPlace &place, CpuValue *k);

// The weight is null or f32 [n_head, n]: what each head's scores get for distances.
void expect_bias(const char *place, const WeightRef &bias, int64_t n_head);
DistanceBias distance_bias(const WeightRef &bias);

} // namespace quire
