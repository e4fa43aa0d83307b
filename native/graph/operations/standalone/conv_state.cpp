// Operations whose state is the last inputs of a sequence: causal convolution, token shift.
#include <ggml-backend.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "graph/operations/stateful_operation.h"
#include "graph/stock/state_streams.h"
#include "graph/trace/standalone_operations.h"

namespace quire {
namespace {

// The state is [kernel - 1, channels], the oldest row first.
class ConvKernel : public StateKernel {
  public:
    ConvKernel(const float *weight, const float *bias, int64_t channels, int64_t width, bool is_silu)
        : bias_(bias), channels_(channels), width_(width), is_silu_(is_silu),
          taps_(static_cast<size_t>(channels * width)) {
        for (int64_t c = 0; c < channels; ++c)
            for (int64_t j = 0; j < width; ++j) taps_[static_cast<size_t>(j * channels + c)] = weight[c * width + j];
    }
    int n_parts() const override { return static_cast<int>((channels_ + part_channels - 1) / part_channels); }
    int64_t part_cost() const override { return part_channels * (width_ + (is_silu_ ? 8 : 0)); }

    void run(const RecurrentKernels &kernels, const StateValues &values, const StateRows &rows,
             int part) const override {
        const int64_t first = part * part_channels, n = std::min(part_channels, channels_ - first);
        const int64_t past = width_ - 1; // rows
        const float *x = values.inputs[0] + rows.begin * channels_ + first;
        float *state = rows.state + first;
        kernels.conv({rows.n, n, channels_, static_cast<int>(width_), is_silu_, x, state, taps_.data() + first,
                      bias_ == nullptr ? nullptr : bias_ + first, values.out + rows.begin * channels_ + first});
        for (int64_t i = 0; i < past; ++i) {
            const int64_t from = rows.n + i - past;
            const float *input = from < 0 ? state + (past + from) * channels_ : x + from * channels_;
            std::memcpy(state + i * channels_, input, static_cast<size_t>(n) * sizeof(float));
        }
    }

  private:
    static constexpr int64_t part_channels = 256;
    const float *bias_; // null: none
    int64_t channels_, width_;
    bool is_silu_;
    std::vector<float> taps_; // [width, channels]
};

// The row before; of the first row that of the step before.
class ShiftKernel : public StateKernel {
  public:
    explicit ShiftKernel(int64_t n) : n_(n) {}
    int n_parts() const override { return 1; }
    int64_t part_cost() const override { return n_; }
    void run(const RecurrentKernels &, const StateValues &values, const StateRows &rows, int) const override {
        const float *x = values.inputs[0] + rows.begin * n_;
        float *out = values.out + rows.begin * n_;
        const size_t row_bytes = static_cast<size_t>(n_) * sizeof(float);
        std::memcpy(out, rows.state, row_bytes);
        std::memcpy(out + n_, x, row_bytes * static_cast<size_t>(rows.n - 1));
        std::memcpy(rows.state, x + (rows.n - 1) * n_, row_bytes);
    }

  private:
    int64_t n_;
};

class TokenShift : public StatefulOperation {
  public:
    TokenShift(StatePlace place, int64_t n) : StatefulOperation("token_shift", place, {}), n_(n) {}

  protected:
    ggml_tensor *lower_on_device(const StockParts &p, const Tensor &states) const override {
        return ggml_reshape_2d(p.context, stock_seen(p, p.inputs[0], states, {1, false}), n_, p.lead);
    }
    std::unique_ptr<StateKernel> make_kernel() const override { return std::make_unique<ShiftKernel>(n_); }

  private:
    int64_t n_;
};

class ConvState : public StatefulOperation {
  public:
    ConvState(StatePlace place, WeightRef weight, WeightRef bias, bool is_silu)
        : StatefulOperation("conv_state", place, without_null({weight, bias})), weight_(std::move(weight)),
          bias_(std::move(bias)), is_silu_(is_silu) {}

  protected:
    // As if each row were a sequence of its own, with the rows that it sees: so the rows of all may come together.
    ggml_tensor *lower_on_device(const StockParts &p, const Tensor &states) const override {
        ggml_context *ctx = p.context;
        const auto width = static_cast<int>(weight_->tensor.shape()[1]);
        ggml_tensor *seen = stock_seen(p, p.inputs[0], states, {width - 1, true});
        seen = ggml_cont(ctx, ggml_permute(ctx, seen, 1, 0, 2, 3)); // {width, channels, rows}
        ggml_tensor *taps = p.weight(weight_), *y = nullptr;
        if (is_operator_for(width)) y = ggml_ssm_conv(ctx, seen, taps);
        if (y == nullptr || !ggml_backend_dev_supports_op(states.device().handle(), y))
            y = ggml_sum_rows(ctx, ggml_mul(ctx, seen, taps));
        y = ggml_reshape_2d(ctx, y, seen->ne[1], p.lead);
        if (bias_) y = ggml_add(ctx, y, p.weight(bias_));
        return is_silu_ ? ggml_silu(ctx, y) : y;
    }
    std::unique_ptr<StateKernel> make_kernel() const override {
        const Shape &shape = weight_->tensor.shape();
        return std::make_unique<ConvKernel>(weight_floats(weight_), weight_floats(bias_), shape[0], shape[1], is_silu_);
    }

  private:
    // ggml's kernels for CUDA have few widths, which its answer to whether an operation is supported does not know.
    static bool is_operator_for(int width) { return width == 3 || width == 4; }
    WeightRef weight_, bias_;
    bool is_silu_;
};

} // namespace

TraceTensor conv_state(const TraceTensor &x, WeightRef weight, WeightRef bias, StatePlace place, bool is_silu) {
    const TraceShape &shape = x.shape();
    if (shape.lead != Lead::tokens || shape.rest.size() != 1)
        throw ShapeError("conv_state", "expected x [tokens, channels]");
    const int64_t channels = shape.rest[0];
    const Shape &taps = weight->tensor.shape();
    const bool fits = taps.size() == 2 && taps[0] == channels && taps[1] >= 2 && taps[1] <= most_conv_width;
    if (!fits || weight->tensor.dtype() != DType::f32)
        throw ShapeError("conv_state", cat(weight->name, " is ", name(weight->tensor.dtype()), " ", to_string(taps),
                                           ": expected f32 [", channels, ", 2 to ", most_conv_width, "]"));
    expect_f32("conv_state", bias, {channels});
    x.tracer->claim_state("conv_state", place.layer, place.index, channels * (taps[1] - 1));
    return record_standalone(std::make_shared<ConvState>(place, std::move(weight), std::move(bias), is_silu), {x},
                             shape);
}

TraceTensor token_shift(const TraceTensor &x, StatePlace place) {
    const TraceShape &shape = x.shape();
    if (shape.lead != Lead::tokens || shape.rest.size() != 1)
        throw ShapeError("token_shift", "expected x [tokens, channels]");
    x.tracer->claim_state("token_shift", place.layer, place.index, shape.rest[0]);
    return record_standalone(std::make_shared<TokenShift>(place, shape.rest[0]), {x}, shape);
}

} // namespace quire
