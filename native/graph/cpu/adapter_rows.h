// The rows of a step that adapters change, by adapter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "graph/trace/step_batch.h"
#include "graph/trace/trace.h"

namespace quire {

// A few rows with one adapter.
struct AdapterChunk {
    const LowRankAdapter *adapter;
    size_t begin, end; // in AdapterRows::rows
    size_t n() const { return end - begin; }
};

// A row may have several adapters, which are added one after the other: this is one of them, for all rows that have it.
struct AdapterRows {
    std::vector<int32_t> rows;
    std::vector<float> scales; // by row
    std::vector<AdapterChunk> chunks;
};

// A step's, one for each adapter that a row has; empty where no row has any.
std::vector<AdapterRows> adapter_rows(const StepBatch &batch, Lead lead);

} // namespace quire
