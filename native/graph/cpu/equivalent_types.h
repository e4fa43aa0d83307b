// Types without a packed layout whose numbers another format holds exactly, in more bytes.  Such matrices are packed in
// that format, so that its kernels multiply many rows together instead of row by row.
#pragma once

#include <cstdint>
#include <optional>

#include "core/dtype.h"
#include "kernels/matmul/packed_weights.h"

namespace quire {

// The format that holds the same numbers; none for other types.
std::optional<WeightFormat> equivalent_format(DType dtype);

// Writes a row of n values of such a type as blocks of that format (file_blocks.h).
void write_as_equivalent(DType dtype, const uint8_t *row, int64_t n, uint8_t *to);

} // namespace quire
