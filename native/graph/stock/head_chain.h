// Operations on heads of q and k before they attend, as one node: see cuda/cache_heads.h.
#pragma once

#include "graph/stock/lower_stock.h"

namespace quire {

struct StockHeads {
    ggml_tensor *q, *k, *v; // {head_dim, heads, rows}, as the trace's operations have made them
};

// q, after a node that norms and rotates as the nodes which made q and k do, and writes k and v to the pools; what it
// replaces is in no graph unless another reads it.  Null where these nodes are others, or the device has no kernel
// for it.
ggml_tensor *cached_heads(StockGraph &graph, const StockHeads &heads, ggml_tensor *k_pool, ggml_tensor *v_pool,
                          ggml_tensor *slots);

} // namespace quire
