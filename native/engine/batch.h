// A plan as the flat arrays that an executor reads.
#pragma once

#include "engine/scheduler.h"
#include "graph/executor.h"

namespace quire {

// Replaces the contents of `batch`; keeps its memory.
// Every group gets the same tables.
void fill_batch(StepBatch &batch, const Plan &plan, int block_tokens, size_t n_groups);

} // namespace quire
