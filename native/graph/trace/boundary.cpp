#include "graph/trace/boundary.h"

#include "graph/trace/shape_checks.h"

namespace quire {

int64_t Boundary::row_floats() const { return row_size(shape); }

} // namespace quire
