// Products of a single row (cuda/row_product.h) or of 2 to 64 (cuda/batch_product.h), on devices with kernels for them.
// Lowering fuses the norm before a product and sums after it into the product, with a single row activations, too.
#pragma once

#include "graph/stock/lower_stock.h"
#include "kernels/rows/row_kernels.h"

namespace quire {

// matrix times x, with the norm that made x.  Null if x has several rows, or the device has no kernel.
ggml_tensor *row_product(StockGraph &graph, ggml_tensor *matrix, ggml_tensor *x);
// Like row_product, for 2 to 64 rows.  Also null if the matrix has no arranged copy.
ggml_tensor *batch_product(StockGraph &graph, ggml_tensor *matrix, ggml_tensor *x);
// Both change the node of a product with no other reader, and return it.  Null if it is no such node.
ggml_tensor *row_product_plus(StockGraph &graph, ggml_tensor *product, ggml_tensor *added);
ggml_tensor *gated_row_product(StockGraph &graph, ggml_tensor *gate, ggml_tensor *up, Activation activation);

} // namespace quire
