// Fills a graph's inputs from a step's flat arrays.
#pragma once

#include "graph/stock/attention_plan.h"
#include "graph/stock/input_memory.h"
#include "graph/stock/lowering.h"
#include "graph/trace/step_batch.h"

namespace quire {

struct StepToFill {
    const LoweredGraph &graph;
    const StepBatch &batch;
    const std::vector<GroupAttention> &attention; // for the batch; the graph is for its forms
    const StatePlan &states; // likewise
    int n_states; // slots; on devices there is one more, for what nobody reads
    const InputMemory &memory;
    const CacheLayout &layout;
    CacheLifetime lifetime(int group) const;
};

// Fills inputs of operations with a state, on devices (graph/stock/state_inputs.cpp).
void fill_state_inputs(const StepToFill &step);

// Keeps masks between steps: most of a mask is hidden, so the next one starts from the last.
class StepInputs {
  public:
    // Writes tokens, positions and logit rows, padded with harmless values, and what attention needs.
    void fill(const StepToFill &step);

  private:
    struct Shown { // numbers of a mask that are not hidden
        size_t begin, n;
    };
    void find_places(const StepToFill &step, PartPlace place);
    void fill_mask(const StepToFill &step, PartPlace place, ggml_tensor *target);
    void fill_bias_columns(const StepToFill &step, PartPlace place, ggml_tensor *target);
    uint64_t masks_of_ = 0; // the graph whose masks the memory holds
    std::map<PartPlace, std::vector<Shown>> shown_;
    std::vector<bool> is_row_; // by row of a part: not padding
    std::vector<int32_t> places_; // by block of a group, among those that are copied
};

} // namespace quire
