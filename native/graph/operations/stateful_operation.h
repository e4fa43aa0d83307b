// Operations that carry a state of each sequence from row to row (convolutions, scans, delta rules): what they share.
//
// To add one: a StateKernel that reads and updates the state of one sequence, and a function that claims the state from
// the tracer and records a StatefulOperation.  A kernel gives the same bits however the rows of a sequence are cut into
// steps: it computes one row after the other.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "graph/operations/standalone_operation.h"
#include "graph/stock/state_streams.h"
#include "graph/trace/shape_checks.h"
#include "graph/trace/standalone_operations.h"
#include "kernels/rows/recurrent_kernels.h"

namespace quire {

// Rows of one sequence in one step.
struct StateRows {
    int64_t begin, n; // rows [begin, begin + n) of inputs and result
    float *state; // the sequence's, to read and to update
};

// Inputs and output of an operation: rows, dense.
struct StateValues {
    std::span<const float *const> inputs;
    float *out;
};

// Weights prepared for the loops of one operation.  Called from several threads.
class StateKernel {
  public:
    virtual ~StateKernel() = default;
    // Blocks of channels, or heads, which do not depend on each other.
    virtual int n_parts() const = 0;
    // About how many multiplications a part takes for a row.
    virtual int64_t part_cost() const = 0;
    // Writes the part's share of the rows of `values.out`.
    virtual void run(const RecurrentKernels &kernels, const StateValues &values, const StateRows &rows,
                     int part) const = 0;
};

class StatefulOperation : public StandaloneOperation {
  public:
    StatefulOperation(const char *name, StatePlace place, std::vector<WeightRef> weights);
    std::string describe() const override;
    std::vector<WeightRef> weights() const override { return weights_; }
    size_t n_tensors() const override { return 64; } // for each part of a step (graph/stock/state_plan.h)
    std::optional<StatePlace> state() const override { return place_; }
    // A custom operator of ggml's CPU device, by the portable kernels: what ggml's own are checked against, which other
    // devices run where `runs_on` says so.
    ggml_tensor *lower(const StockParts &parts) const final;
    std::unique_ptr<CpuNode> cpu_node(const CpuNodeParts &parts) const override;

  protected:
    // By ggml's operators.  `states`: f32 [slots, n].
    virtual ggml_tensor *lower_on_device(const StockParts &parts, const Tensor &states) const = 0;
    // Once, when the weights lie in the host's memory.
    virtual std::unique_ptr<StateKernel> make_kernel() const = 0;

  private:
    const StateKernel &kernel() const;
    const char *name_;
    StatePlace place_;
    std::vector<WeightRef> weights_; // not null
    mutable std::once_flag made_;
    mutable std::unique_ptr<StateKernel> kernel_;
};

// One that ggml computes by streams (graph/stock/state_streams.h).
class StreamedOperation : public StatefulOperation {
  public:
    using StatefulOperation::StatefulOperation;
    bool runs_on(Device device) const override;

  protected:
    ggml_tensor *lower_on_device(const StockParts &parts, const Tensor &states) const override;
    // True if ggml's operator supports such sizes at all; and the shapes of its inputs.
    virtual bool has_operator() const = 0;
    virtual std::vector<TraceShape> input_shapes() const = 0;
    virtual std::vector<ggml_tensor *> stream_inputs(const StockParts &parts) const { return parts.inputs; }
    virtual StreamsMade make_streams(const StateStreams &streams) const = 0;
    virtual int64_t n_state() const = 0;
};

} // namespace quire
