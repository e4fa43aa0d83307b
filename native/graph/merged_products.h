// Which products read the same rows and may be one, as their matrices lie one after the other on a device: q, k and v of a layer,
// and gate and up.  A step of few rows costs as many kernels as it has products, nearly whatever these multiply.
#pragma once

#include <vector>

#include "graph/operations.h"

namespace quire {

// Matrices that may lie together: of one type and width, read once, without biases.  Their results are heads that are normed,
// rotated or attended to, for which ggml wants no row to follow the one before it; or those of gate and up, which ggml takes
// together as well, but has a better way for one row.
struct MatrixGroup {
    std::vector<WeightRef> weights;
    bool is_gate = false;
};
// Each matrix is in one group at most.
std::vector<MatrixGroup> products_together(const std::vector<const Trace *> &traces);

} // namespace quire
