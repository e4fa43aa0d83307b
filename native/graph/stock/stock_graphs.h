// Runs a trace by ggml's operators: chooses the step's form of attention, finds or builds the graph, sends the inputs and
// fetches the result.
#pragma once

#include <memory>
#include <vector>

#include "core/device_faults.h"
#include "graph/stock/device_adapters.h"
#include "graph/stock/graph_cache.h"
#include "graph/stock/graph_key.h"
#include "graph/stock/logit_strips.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/step_inputs.h"

namespace quire {

// Shared by the traces on one device, which run one at a time.
struct StockDevice {
    Backend &backend;
    const KvStore &store;
    bool on_device;
    std::unique_ptr<InputSums> sums; // null if not needed
    DeviceAdapters adapters;
    StockLowering lowering;
    GraphCache cache;
    StepInputs inputs;

    // All arguments outlive it.  `copies`: of weights that are not on the device, or null.
    StockDevice(Backend &backend, const KvStore &store, bool sums_inputs, DeviceWeights *copies);
};

class StockGraphs {
  public:
    // Both outlive it.  UnsupportedError if the device lacks an operation; CapacityError if memory does not suffice for
    // the largest step.
    StockGraphs(StockDevice &device, const Trace &trace, GraphLimits limits);
    // Returns the output, null if the trace has none.  Afterwards, values for other pieces are in their boundaries.
    // DeviceError if the device is lost.
    float *run(const StepBatch &batch);
    // Results of the last run; null if there are none.
    const float *hidden();
    const float *tap(size_t i);
    float *maxima() { return has_strips_ ? strips_.maxima() : nullptr; }

  private:
    struct FreeBuffer {
        void operator()(ggml_backend_buffer *buffer) const { free_buffer(buffer); }
    };
    // Host memory for copies of a device's rows.
    struct Copy {
        std::unique_ptr<ggml_backend_buffer, FreeBuffer> buffer;
        size_t size_bytes = 0;
        bool is_there = false; // copied since the last run
    };
    void reserve(const GraphLimits &limits);
    float *run_step(const StepBatch &batch);
    void prepare_adapters(const StepBatch &batch);
    static std::vector<AttentionForm> forms(const std::vector<GroupAttention> &attention);
    // The first n_rows of `tensor`: in place if it is in host memory, else copied into `copy`.
    float *fetch(const ggml_tensor *tensor, size_t n_rows, Copy &copy);
    float *fetch_logits(const LoweredGraph &graph, const StepBatch &batch);
    float *room(size_t bytes, Copy &copy);
    bool may_find_strips() const;
    const float *fetch_now(const ggml_tensor *tensor, size_t n_rows, Copy &copy);
    void fetch_left(const LoweredGraph &graph) const;

    StockDevice &device_;
    const Trace &trace_;
    int number_; // the trace's
    GraphBuckets buckets_;
    AttentionPlanner planner_;
    StatePlanner states_;
    Copy logits_, hidden_;
    LogitStrips strips_;
    bool finds_strips_ = false, has_strips_ = false; // the device can find strips; the last run did
    std::vector<Copy> taps_;
    const LoweredGraph *last_ = nullptr;
    size_t n_tokens_ = 0, n_rows_ = 0; // sizes of the last run; n_rows_: rows of logits
};

} // namespace quire
