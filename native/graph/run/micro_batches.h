// Parts of a step that stages of a pipeline work on at the same time.
#pragma once

#include <vector>

#include "graph/trace/step_batch.h"

namespace quire {

// Cuts a step after about equally many rows, between or within sequences; `most` parts, and none of fewer than
// micro_batch_rows.  A part refers to the features of the step.  Its rows see those of the parts before it.
inline constexpr size_t micro_batch_rows = 32;
std::vector<StepBatch> micro_batches(const StepBatch &batch, size_t most);

} // namespace quire
