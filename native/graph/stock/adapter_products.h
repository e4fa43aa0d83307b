// The additions of a step's adapters to products in ggml graphs.
#pragma once

#include "graph/stock/lower_stock.h"

namespace quire {

struct StockParts;

// `made`, the product of `weight` and `x`, plus scale * B (A x) for each adapter of a row; `made` itself in steps without
// adapters, and where none changes the matrix.
ggml_tensor *with_adapters(const StockParts &parts, const Weight *weight, ggml_tensor *x, ggml_tensor *made);
size_t adapter_tensors(const GraphKey &key); // records that a product needs for them

struct StepToFill;
void fill_adapter_inputs(const StepToFill &step);

} // namespace quire
