// The steps before attention in one operation: norm and rotation of the heads of q and k, and writing k and v to the
// cache.  On the CPU graph/stock/own_nodes.cpp computes it, on CUDA cuda/cache_heads.cuh.
//
// Sources: 0, 1, 2 q, k, v f32 {head_dim, heads, n_rows}, with any distance between rows; 3, 4 the pools of K and V
// {n_kv_head * head_dim, n_slots}, f16 or bf16, which are written to; 5 slots i64 {n_rows}; 6 positions i32 {n_rows};
// 7, 8 weights of the norms of q and k f32 {head_dim}, optional; 9 divisors of the frequencies f32 {n_dims / 2},
// optional.  Result: q f32 {head_dim, n_head, n_rows}.
#pragma once

#include "cuda/node_params.h"

namespace quire {

struct CacheHeads {
    static constexpr uint32_t magic_number = 0x51434831;
    uint32_t magic = magic_number;
    uint8_t norms_q = 0, norms_k = 0, halves = 0,
            unused = 0; // halves: pairs are i and i + n_dims / 2, otherwise 2 i and 2 i + 1
    float eps = 0, freq_base = 0, freq_scale = 1, magnitude = 1;
    int32_t n_dims = 0; // number of dimensions that are rotated
};

} // namespace quire
