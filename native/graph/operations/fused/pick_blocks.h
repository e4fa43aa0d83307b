// Attention to the blocks that an indexer picks for heads (kernels/attention/block_choice.h).  On the CPU only.
#pragma once

#include "graph/operations/fused/paged_rows.h"
#include "graph/trace/fused_operations.h"

namespace quire {

// As ggml's operators compute it: a row at a time, from a cache in which tokens lie one after the other.  The last input
// is what was picked.
struct PickedBlocksAttention {
    int layer;
    float scale, soft_cap;
    const float *sinks; // [n_head], or null
};
ggml_tensor *stock_attend_blocks(const StockParts &parts, const PickedBlocksAttention &attention);

} // namespace quire
