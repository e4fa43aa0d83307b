// The selective scan of Mamba 1 (Gu and Dao 2023).
#include <algorithm>

#include "core/error.h"
#include "graph/operations/stateful_operation.h"
#include "graph/stock/stream_operators.h"
#include "graph/trace/standalone_operations.h"

namespace quire {
namespace {

class ScanKernel : public StateKernel {
  public:
    ScanKernel(const float *a, const float *skip, int64_t channels, int64_t n_state)
        : skip_(skip), channels_(channels), n_state_(n_state), a_(static_cast<size_t>(channels * n_state)) {
        float *to = a_.data();
        for (int64_t first = 0; first < channels; first += scan_channels) {
            const int64_t end = std::min(first + scan_channels, channels);
            for (int64_t s = 0; s < n_state; ++s)
                for (int64_t c = first; c < end; ++c) *to++ = a[c * n_state + s];
        }
    }
    int n_parts() const override { return static_cast<int>((channels_ + part_channels - 1) / part_channels); }
    int64_t part_cost() const override { return part_channels * n_state_ * 12; } // the exponential's

    void run(const RecurrentKernels &kernels, const StateValues &values, const StateRows &rows,
             int part) const override {
        const int64_t first = part * part_channels, n = std::min(part_channels, channels_ - first);
        const int64_t at = rows.begin * channels_ + first;
        kernels.scan({rows.n, n, channels_, n_state_, values.inputs[0] + at, values.inputs[1] + at,
                      values.inputs[2] + rows.begin * n_state_, values.inputs[3] + rows.begin * n_state_,
                      a_.data() + first * n_state_, skip_ == nullptr ? nullptr : skip_ + first,
                      rows.state + first * n_state_, values.out + at});
    }

  private:
    static constexpr int64_t part_channels = 64;
    static_assert(part_channels % scan_channels == 0);
    const float *skip_; // null: none
    int64_t channels_, n_state_;
    std::vector<float> a_; // as ScanRows has it
};

class SelectiveScan : public StreamedOperation {
  public:
    SelectiveScan(StatePlace place, WeightRef a, WeightRef skip)
        : StreamedOperation("selective_scan", place, without_null({a, skip})), a_(std::move(a)),
          skip_(std::move(skip)) {}

  protected:
    std::unique_ptr<StateKernel> make_kernel() const override {
        const Shape &shape = a_->tensor.shape();
        return std::make_unique<ScanKernel>(weight_floats(a_), weight_floats(skip_), shape[0], shape[1]);
    }
    bool has_operator() const override { return true; }
    std::vector<TraceShape> input_shapes() const override {
        const TraceShape channels{Lead::tokens, {n_channels()}}, states{Lead::tokens, {a_->tensor.shape()[1]}};
        return {channels, channels, states, states};
    }
    int64_t n_state() const override { return a_->tensor.n_elements(); }
    std::vector<ggml_tensor *> stream_inputs(const StockParts &p) const override {
        return {p.inputs[0], stock_before_softplus(p.context, p.inputs[1]), p.inputs[2], p.inputs[3]};
    }
    // Each channel is a head.
    StreamsMade make_streams(const StateStreams &streams) const override {
        const std::vector<ggml_tensor *> &in = streams.inputs;
        return stock_scan(streams, {1, n_channels(), 1, a_->tensor.shape()[1], in[0], in[1], in[2], in[3],
                                    streams.weight(a_), skip_ ? streams.weight(skip_) : nullptr});
    }

  private:
    int64_t n_channels() const { return a_->tensor.shape()[0]; }
    WeightRef a_, skip_;
};

} // namespace

TraceTensor selective_scan(const ScanInputs &in, WeightRef a, WeightRef d, StatePlace place) {
    constexpr const char *name = "selective_scan";
    const TraceShape &shape = in.x.shape();
    if (shape.lead != Lead::tokens || shape.rest.size() != 1 || !(in.dt.shape() == shape))
        throw ShapeError(name, "expected x and dt [tokens, channels]");
    const TraceShape &of_state = in.b.shape();
    if (of_state.lead != Lead::tokens || of_state.rest.size() != 1 || !(in.c.shape() == of_state))
        throw ShapeError(name, "expected b and c [tokens, n_state]");
    const int64_t channels = shape.rest[0], n_state = of_state.rest[0];
    expect_f32(name, a, {channels, n_state});
    expect_f32(name, d, {channels});
    in.x.tracer->claim_state(name, place.layer, place.index, channels * n_state);
    return record_standalone(std::make_shared<SelectiveScan>(place, std::move(a), std::move(d)),
                             {in.x, in.dt, in.b, in.c}, shape);
}

} // namespace quire
