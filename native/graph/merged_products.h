// Which products read the same rows and may be one: q, k and v of a layer, whose matrices lie one after the other on a device.
// A step of few rows costs as many kernels as it has products, nearly whatever these multiply.
#pragma once

#include <vector>

#include "graph/operations.h"

namespace quire {

// Matrices of the traces that may lie together, each in one group at most: of one type and width, read once, without biases,
// and whose results are heads that are normed, rotated or attended to, for which ggml wants no row to follow the one before it.
std::vector<std::vector<WeightRef>> products_together(const std::vector<const Trace *> &traces);

} // namespace quire
