// A plan as the flat arrays that an executor reads.
#pragma once

#include "engine/scheduling/scheduler.h"
#include "graph/trace/step_batch.h"

namespace quire {

// Replaces the contents of `batch`; keeps its memory.
void fill_batch(StepBatch &batch, const Plan &plan, const CachePool &pool);
// The same of the source texts that are encoded before; false: there are none.
bool fill_source_batch(StepBatch &batch, const Plan &plan, const CachePool &pool);

} // namespace quire
