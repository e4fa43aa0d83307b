// Attention by block tables.  On the CPU graph/stock/own_nodes.cpp computes it, on CUDA cuda/paged_attention.cuh.
//
// Sources: 0 q f32 {head_dim, n_head, n_rows}; 1, 2 the pools of K and V {n_kv_head * head_dim, n_slots}, f16 or bf16;
// 3 tables i32 {n_blocks, n_rows}, blocks of the pool; 4 spans i32 {2, n_rows}, the first token that a row sees,
// counted from the start of its table, and the number of tokens; 5 sinks f32 {n_head}, optional.  Result: f32
// {head_dim, n_head, n_rows}, zero for a row that sees no tokens.
#pragma once

#include "cuda/node_params.h"

namespace quire {

constexpr int paged_block_tokens = 32, paged_sources = 5; // paged_sources: sources without the optional ones

struct PagedAttention {
    static constexpr uint32_t magic_number = 0x51505631;
    uint32_t magic = magic_number;
    float scale = 1, soft_cap = 0; // soft_cap 0: no cap
};

} // namespace quire
