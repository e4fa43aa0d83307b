// Attention to cached rows by ggml's operators, in the forms of graph/stock/attention_plan.h.
#pragma once

#include "graph/stock/stock_parts.h"

namespace quire {

struct StockAttention {
    int layer;
    float scale, soft_cap;
    WeightRef sinks, bias; // either may be null
};

// Where a group's pools get the step's rows.
ggml_tensor *stock_slots(StockGraph &graph, int group);
// A group's pool with the rows of `x` {head_dim, n_kv_head, n_tokens} in the step's slots of it.
ggml_tensor *stock_stored(StockGraph &graph, int group, ggml_tensor *x, const Tensor &pool);
// Inputs of the operation: q, k, v; q and k, where V is within K; or q alone where the layer's rows are written
// already.
ggml_tensor *stock_attention(const StockParts &parts, const StockAttention &attention);

// Scores {n_kv, n_tokens, n_head, n} with it; `columns` {n_kv, n_tokens, n}: its column for each pair.
ggml_tensor *stock_with_bias(const StockParts &parts, ggml_tensor *scores, const WeightRef &bias, ggml_tensor *columns);

} // namespace quire
