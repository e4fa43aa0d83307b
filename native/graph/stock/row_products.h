// Products of one row on devices that have a kernel for them: cuda/row_product.h.  The norm before a product
// and the sums and activations after it are fused into it as the trace's operations are lowered.
#pragma once

#include "graph/stock/lower_stock.h"
#include "kernels/rows/row_kernels.h"

namespace quire {

// matrix times x, with the norm that has made x; null where x has several rows, or the device has no kernel for it.
ggml_tensor *row_product(StockGraph &graph, ggml_tensor *matrix, ggml_tensor *x);
// These two change the node of a product that nobody else reads, and give it; null where it is none.
ggml_tensor *row_product_plus(StockGraph &graph, ggml_tensor *product, ggml_tensor *added);
ggml_tensor *gated_row_product(StockGraph &graph, ggml_tensor *gate, ggml_tensor *up, Activation activation);

} // namespace quire
