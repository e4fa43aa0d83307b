// Attention to cached rows by ggml's operators, in the forms of graph/stock/attention_plan.h.
#pragma once

#include "graph/stock/stock_parts.h"

namespace quire {

struct StockAttention {
    int layer;
    float scale, soft_cap;
    WeightRef sinks, bias; // either may be null
    bool is_picked = false; // the last input is a result of stock_pick
};

// The slots of a group's pools for the step's rows.
ggml_tensor *stock_slots(StockGraph &graph, int group);
// The pool after writing the rows `x` {head_dim, n_kv_head, n_tokens} to the step's slots.
ggml_tensor *stock_stored(StockGraph &graph, int group, ggml_tensor *x, const Tensor &pool);
// Inputs of the operation: q, k, v; or q, k if V is a part of K; or q alone if the layer's rows were written earlier.
ggml_tensor *stock_attention(const StockParts &parts, const StockAttention &attention);

struct StockPick {
    int layer, n_picked;
};
// Inputs: q, k, weights (graph/trace/fused_operations.h).  The result is a mask for the attention of other layers in the
// same graph.
ggml_tensor *stock_pick(const StockParts &parts, const StockPick &pick);

// Adds the bias to scores {n_kv, n_tokens, n_head, n}; `columns` {n_kv, n_tokens, n}: its column for each pair.
ggml_tensor *stock_with_bias(const StockParts &parts, ggml_tensor *scores, const WeightRef &bias, ggml_tensor *columns);

} // namespace quire
