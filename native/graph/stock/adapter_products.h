// The additions of a step's adapters to products in ggml graphs.
#pragma once

#include "graph/stock/lower_stock.h"

namespace quire {

struct StockParts;

// `made`, the product of `weight` and `x` plus `bias`, if any, with the changes of each adapter of a row; `made` itself in
// steps without adapters, and where none changes the matrix.
ggml_tensor *with_adapters(const StockParts &parts, const Weight *weight, ggml_tensor *x, ggml_tensor *made,
                           ggml_tensor *bias);
// As with_adapters, where `made` is the rows of tokens `ids` in a table.
ggml_tensor *with_table_adapters(const StockParts &parts, const Weight *weight, ggml_tensor *ids, ggml_tensor *made);
size_t adapter_tensors(const GraphKey &key); // records that a product needs for them

struct StepToFill;
void fill_adapter_inputs(const StepToFill &step);

} // namespace quire
