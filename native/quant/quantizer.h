// Conversion between f32 and every type that ggml stores, on several threads.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace quire {

// True for the types values can be stored in: f32, f16, bf16 and the quantized types of files.
bool can_quantize(DType dtype);
// True for the types that are only usable with the importance of each column.
bool needs_importance(DType dtype);

// Quantize an array row by row, on the CPU.  `importance` has a weight per column (the cost of an error in it), or is
// empty.  The result does not depend on n_threads (0: one per core).
// Throws ShapeError for partial blocks, invalid weights, and values that are not finite or do not fit (quantized types
// take magnitudes up to 2^20); UnsupportedError if values cannot be stored as `dtype`.
Tensor quantize(const float *values, const Shape &shape, DType dtype, std::span<const float> importance, int n_threads);

// Write all values as f32 to `values` [n_elements].
void dequantize(const Tensor &tensor, float *values, int n_threads);

} // namespace quire
