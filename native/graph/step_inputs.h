// Fills a graph's input tensors from a step's flat arrays.
#pragma once

#include "graph/executor.h"
#include "graph/lowering.h"

namespace quire {

// Scratch arrays are kept between steps.
class StepInputs {
  public:
    // Writes tokens, positions and logit rows, padded with harmless values, and what stock attention needs.
    void fill(const LoweredGraph &graph, const StepBatch &batch);

  private:
    void fill_padded(ggml_tensor *target, const std::vector<int32_t> &values);
    void fill_write_rows(ggml_tensor *target, const StepBatch &batch, GroupHeads of);
    void fill_gather_rows(ggml_tensor *target, const StepBatch &batch, GroupHeads of);
    void fill_row_mask(ggml_tensor *target, const StepBatch &batch, int window);
    void fill_bias_columns(ggml_tensor *target, const StepBatch &batch, int n);
    void fill_row_bias_columns(ggml_tensor *target, int n);
    void fill_axes(ggml_tensor *target, const StepBatch &batch);
    void fill_sequences(ggml_tensor *target, const StepBatch &batch);
    void fill_mask(ggml_tensor *target, const StepBatch &batch, CacheLifetime lifetime);
    std::vector<int32_t> ints_;
    std::vector<int64_t> longs_;
    std::vector<float> floats_;
};

} // namespace quire
