// Types without a layout of their own for products whose numbers another format holds exactly, for more bytes.  Such
// matrices are packed as that one, so that they are multiplied by its kernels: many rows together, not row by row.
#pragma once

#include <cstdint>
#include <optional>

#include "core/dtype.h"
#include "kernels/matmul/packed_weights.h"

namespace quire {

// The format that holds the same numbers; none for all others.
std::optional<WeightFormat> equivalent_format(DType dtype);

// A row of n values of such a type to blocks of that format (file_blocks.h).
void write_as_equivalent(DType dtype, const uint8_t *row, int64_t n, uint8_t *to);

} // namespace quire
