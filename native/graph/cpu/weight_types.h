// How matrices of each type of files are packed.
#pragma once

#include <optional>

#include "core/tensor.h"
#include "kernels/matmul/packed_weights.h"

namespace quire {

// The format that a type's matrices are packed to; none for types that are no weights.
std::optional<WeightFormat> packed_format(DType dtype);

// Bytes that a row of n values takes when products read it.
int64_t packed_row_bytes(DType dtype, int64_t n);

// Tile `tile` of a matrix, with the shape and format of `packed`, to `to`.
void pack_tile(const PackedWeights &packed, const Tensor &tensor, int64_t tile, uint8_t *to);

} // namespace quire
