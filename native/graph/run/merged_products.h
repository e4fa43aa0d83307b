// Products that read the same rows and may run as one, as their matrices are neighbours on a device: q, k and v of a
// layer, and gate and up.  A step of few rows costs as many kernels as it has products, nearly whatever these multiply.
#pragma once

#include <vector>

#include "graph/stock/device_weights.h"
#include "graph/trace/trace.h"

namespace quire {

// Each matrix is in one group at most.
std::vector<MatrixGroup> products_together(const std::vector<const Trace *> &traces);
// The matrices of all linear operations.
std::vector<WeightRef> matrices_of_products(const std::vector<const Trace *> &traces);

} // namespace quire
