// What Quire's core and a module of a device agree on about attention by block tables.  ggml carries it as a GGML_OP_CUSTOM
// node, of which it knows nothing: on the CPU the node's own function computes it (graph/operations/paged_attention.cpp), and
// CUDA's module has kernels for it (cuda/operations.cu).
//
// Sources: 0 q f32 {head_dim, n_head, n_rows}; 1 and 2 the pools of K and V {n_kv_head * head_dim, n_slots}, of f16 or bf16;
// 3 tables i32 {n_blocks, n_rows}: blocks of the pool; 4 spans i32 {2, n_rows}: the first token that a row sees, counted
// from its table's first one, and how many; 5 sinks f32 {n_head}, or nothing.  Result f32 {head_dim, n_head, n_rows}: zero for
// a row that sees nothing.
#pragma once

#include <ggml.h>

#include <cstring>

namespace quire {

constexpr int paged_block_tokens = 32, paged_sources = 5; // sources: the least

struct PagedAttention {
    static constexpr uint32_t magic_number = 0x51505631; // an operation of another making has another one
    uint32_t magic = magic_number;
    float scale = 1, soft_cap = 0; // soft_cap: 0 is none
};

// They lie behind what ggml has there.
inline void set_params(ggml_tensor *node, const PagedAttention &params) {
    static_assert(sizeof(params) <= 24);
    std::memcpy(node->op_params + 8, &params, sizeof(params));
}

inline bool get_params(const ggml_tensor *node, PagedAttention &params) {
    std::memcpy(static_cast<void *>(&params), node->op_params + 8, sizeof(params));
    return node->op == GGML_OP_CUSTOM && params.magic == PagedAttention::magic_number;
}

} // namespace quire
