// The operations on heads of q and k before attention, fused to one node: see cuda/cache_heads.h.
#pragma once

#include "graph/stock/lower_stock.h"

namespace quire {

struct StockHeads {
    ggml_tensor *q, *k, *v; // {head_dim, heads, rows}, as the operations of the trace made them
};

// Adds a node that norms and rotates q and k like the nodes that made them, and writes k and v to the pools.  Returns
// its q.  The replaced nodes stay in the graph only if others read them.  Null if the nodes of q and k are of other
// kinds, or the device has no kernel.
ggml_tensor *cached_heads(StockGraph &graph, const StockHeads &heads, ggml_tensor *k_pool, ggml_tensor *v_pool,
                          ggml_tensor *slots);

} // namespace quire
