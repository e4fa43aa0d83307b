// Packing of matrices, by the type of the file.
#pragma once

#include <optional>

#include "core/tensor.h"
#include "kernels/matmul/packed_weights.h"

namespace quire {

// The format in which a type's matrices are packed; none for types that are no weights.
std::optional<WeightFormat> packed_format(DType dtype);

// Bytes of a row of n values as products read it.
int64_t packed_row_bytes(DType dtype, int64_t n);

// Writes tile `tile` of a matrix, with the shape and format of `packed`, to `to`.
void pack_tile(const PackedWeights &packed, const Tensor &tensor, int64_t tile, uint8_t *to);

} // namespace quire
