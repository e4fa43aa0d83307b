// Operations of models that several ranks run together (core/rank_group.h).
#pragma once

#include <memory>

#include "core/rank_group.h"
#include "graph/trace/tracer.h"

namespace quire {

// The sum of x [rows, n] over the ranks that split the model's matrices (operations/standalone/all_reduce.cpp).  Every
// rank gets the same bits.  On the CPU only.
TraceTensor all_reduce(const TraceTensor &x, std::shared_ptr<RankGroup> group);

} // namespace quire
