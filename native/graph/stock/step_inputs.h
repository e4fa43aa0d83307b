// Fills the inputs of a graph from the flat arrays of a step.
#pragma once

#include "graph/stock/attention_plan.h"
#include "graph/stock/input_memory.h"
#include "graph/stock/lowering.h"
#include "graph/trace/step_batch.h"

namespace quire {

class DeviceAdapters;

struct StepToFill {
    const LoweredGraph &graph;
    const StepBatch &batch;
    const std::vector<GroupAttention> &attention; // attention of the batch; the graph was built for its forms
    const StatePlan &states; // likewise
    int n_states; // slots; devices have one more, whose state is never read
    const InputMemory &memory;
    const CacheLayout &layout;
    const DeviceAdapters &adapters; // with those of the batch
    CacheLifetime lifetime(int group) const;
};

// Fills the inputs of operations with a state, on devices (graph/stock/state_inputs.cpp).
void fill_state_inputs(const StepToFill &step);

// Keeps masks between steps, as only the few unmasked entries need to change.
class StepInputs {
  public:
    // Writes tokens, positions and logit rows, padded with harmless values, and the inputs of attention.
    void fill(const StepToFill &step);

  private:
    struct Shown { // entries of a mask that are not hidden
        size_t begin, n;
    };
    void find_places(const StepToFill &step, PartPlace place);
    void fill_mask(const StepToFill &step, PartPlace place, ggml_tensor *target);
    void fill_bias_columns(const StepToFill &step, PartPlace place, ggml_tensor *target);
    uint64_t masks_of_ = 0; // the graph whose masks the memory holds
    std::map<PartPlace, std::vector<Shown>> shown_;
    std::vector<bool> is_row_; // by row of a part; false: padding
    std::vector<int32_t> places_; // by block of a group: its index among the copied blocks
};

} // namespace quire
