// Attention by block tables: on the CPU graph/stock/own_nodes.cpp computes it, on CUDA cuda/paged_attention.cuh.
//
// Sources: 0 q f32 {head_dim, n_head, n_rows}; 1 and 2 the pools of K and V {n_kv_head * head_dim, n_slots}, of f16 or bf16;
// 3 tables i32 {n_blocks, n_rows}: blocks of the pool; 4 spans i32 {2, n_rows}: the first token that a row sees, counted
// from its table's first one, and how many; 5 sinks f32 {n_head}, or nothing.  Result f32 {head_dim, n_head, n_rows}: zero for
// a row that sees nothing.
#pragma once

#include "cuda/node_params.h"

namespace quire {

constexpr int paged_block_tokens = 32, paged_sources = 5; // sources: the least

struct PagedAttention {
    static constexpr uint32_t magic_number = 0x51505631;
    uint32_t magic = magic_number;
    float scale = 1, soft_cap = 0; // soft_cap: 0 is none
};

} // namespace quire
