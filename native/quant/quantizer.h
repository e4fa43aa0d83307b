// Between f32 and every type that ggml stores, over threads.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor.h"

namespace quire {

// Whether values can be stored as `dtype`: f32, f16, bf16 and the quantized types of files.
bool can_quantize(DType dtype);
// Whether `dtype` cannot be made well without the importance of each column.
bool needs_importance(DType dtype);

// Rows of `shape` to `dtype`, on the CPU.  `importance`: a weight per element of a row (how much an error there costs),
// or empty.  ShapeError for broken rows, values that are not finite or do not fit (quantized types take magnitudes up to
// 2^20) and wrong weights; UnsupportedError for types that values cannot be stored as.  The result does not depend on
// n_threads (0: one per core).
Tensor quantize(const float *values, const Shape &shape, DType dtype, std::span<const float> importance, int n_threads);

// All values as f32, to `values` [n_elements].
void dequantize(const Tensor &tensor, float *values, int n_threads);

} // namespace quire
