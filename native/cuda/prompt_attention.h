// Attention of many rows by block tables.  On the CPU graph/stock/own_nodes.cpp computes it, on CUDA
// cuda/prompt_attention.cuh.
//
// Sources: as of cuda/paged_attention.h, but a table serves all rows of a stream: 0 q f32 {head_dim, n_head, n_rows}, the
// rows of one stream after another's; 3 tables i32 {n_blocks, n_streams}; 4 spans i32 {2, n_rows}.
#pragma once

#include "cuda/node_params.h"

namespace quire {

struct PromptAttention {
    static constexpr uint32_t magic_number = 0x51505231;
    uint32_t magic = magic_number;
    float scale = 1, soft_cap = 0; // soft_cap 0: no cap
    int32_t stream_rows = 1;
};

} // namespace quire
