// Types without a layout of our own for products whose numbers another type holds exactly, for more bytes.  Such matrices
// are packed as that one's, so that they are multiplied by its kernels: many rows together, not row by row.
#pragma once

#include <cstdint>
#include <optional>

#include "core/dtype.h"

namespace quire {

// The type that holds the same numbers; none for all others.
std::optional<DType> type_of_same_numbers(DType dtype);

// A row of n values of such a type to one of the other.  UnsupportedError for scales that it does not hold.
void write_same_numbers(DType dtype, const uint8_t *row, int64_t n, uint8_t *to);

} // namespace quire
