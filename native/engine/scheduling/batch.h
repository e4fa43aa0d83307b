// A plan as the flat arrays that an executor reads.
#pragma once

#include "engine/scheduling/scheduler.h"
#include "graph/trace/step_batch.h"

namespace quire {

// Replaces the contents of `batch`; keeps its memory.
void fill_batch(StepBatch &batch, const Plan &plan, const CachePool &pool);
// Fills the arrays of the source texts that are encoded before; false: there are none.
bool fill_source_batch(StepBatch &batch, const Plan &plan, const CachePool &pool);
// The rows of sounds that are encoded before.
void fill_source_media(std::vector<float> &rows, const Plan &plan);

// The features of a model that reads media, [n_rows, 1 + width]: 1 and zeros for a token, 0 and the row for media.
void fill_media(std::vector<float> &rows, const Plan &plan, size_t width);

} // namespace quire
