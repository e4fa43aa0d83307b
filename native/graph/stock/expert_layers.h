// A layer of experts as one node (cuda/expert_layer.h), on devices with kernels for it and arranged copies of the
// matrices (graph/stock/batch_matrices.h).
#pragma once

#include "graph/stock/lower_stock.h"
#include "graph/trace/fused_operations.h"

namespace quire {

struct StockParts;

// The weighted sum of the chosen experts.  Null if the device, the unit or the types of the matrices are not supported.
ggml_tensor *expert_layer(const StockParts &parts, const MoeWeights &matrices, const MoeSpec &spec,
                          ggml_tensor *experts, ggml_tensor *weights);
// Adds to the node of a layer with no other reader, and returns it.  Null if it is no such node.
ggml_tensor *expert_layer_plus(StockGraph &graph, ggml_tensor *layer, ggml_tensor *added);

} // namespace quire
