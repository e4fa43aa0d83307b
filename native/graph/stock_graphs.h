// A trace by ggml's operators: the step's form of attention is chosen, its graph found or made, its inputs sent, its result
// brought back.
#pragma once

#include <memory>
#include <vector>

#include "graph/graph_cache.h"
#include "graph/graph_key.h"
#include "graph/lower_stock.h"
#include "graph/step_inputs.h"

namespace quire {

class StockGraphs {
  public:
    // Everything outlives it.  UnsupportedError when the device lacks an operation; CapacityError when the largest step has
    // no memory.
    StockGraphs(const Trace &trace, const KvStore &store, Backend &backend, GraphLimits limits, bool sums_inputs);
    float *run(const StepBatch &batch);
    // Of the last run; null where there are none, or no run was.
    const float *hidden();
    const float *tap(size_t i);
    const InputSums *sums() const { return sums_.get(); }
    size_t compute_bytes() const { return cache_.compute_bytes(); }
    size_t n_graphs() const { return cache_.n_graphs(); }

  private:
    struct FreeBuffer {
        void operator()(ggml_backend_buffer *buffer) const { ggml_backend_buffer_free(buffer); }
    };
    // What a device's rows are copied to.
    struct Copy {
        std::unique_ptr<ggml_backend_buffer, FreeBuffer> buffer;
        size_t size_bytes = 0;
        bool is_there = false; // since the last run
    };
    static std::vector<AttentionForm> forms(const std::vector<GroupAttention> &attention);
    // The first rows, asked of the device where they are on one.
    float *fetch(const ggml_tensor *tensor, size_t n_rows, Copy &copy);
    const float *fetch_now(const ggml_tensor *tensor, size_t n_rows, Copy &copy);

    Backend &backend_;
    const KvStore &store_;
    bool on_device_;
    std::unique_ptr<InputSums> sums_; // null where they are not wanted
    StockLowering lowering_;
    GraphBuckets buckets_;
    AttentionPlanner planner_;
    GraphCache cache_;
    StepInputs inputs_;
    Copy logits_, hidden_;
    std::vector<Copy> taps_;
    const LoweredGraph *last_ = nullptr;
    size_t n_tokens_ = 0, n_rows_ = 0; // n_rows_: of logits; both of the last run
};

} // namespace quire
