// Depth-wise causal convolution over the rows of a sequence, whose last kernel - 1 inputs are its state.
#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "graph/primitives.h"
#include "graph/state_primitive.h"
#include "kernels/row_kernels.h"

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

    void run(std::span<const float *const> inputs, float *out, const StateRows &rows, int part) const override {
        const int64_t first = part * part_channels, n = std::min(part_channels, channels_ - first);
        const int64_t past = width_ - 1; // rows
        const float *x = inputs[0] + rows.begin * channels_ + first;
        float *state = rows.state + first, *y = out + rows.begin * channels_ + first;
        const RowKernels &kernels = row_kernels();
        for (int64_t row = 0; row < rows.n; ++row, y += channels_) {
            if (bias_ != nullptr)
                std::memcpy(y, bias_ + first, static_cast<size_t>(n) * sizeof(float));
            else
                std::fill_n(y, n, 0.0F);
            for (int64_t j = 0; j < width_; ++j) {
                const int64_t from = row + j - past;
                const float *input = from < 0 ? state + (past + from) * channels_ : x + from * channels_;
                add_products(taps_.data() + j * channels_ + first, input, y, n);
            }
            if (is_silu_) kernels.activate(Activation::silu, y, y, n);
        }
        for (int64_t i = 0; i < past; ++i) {
            const int64_t from = rows.n + i - past;
            const float *input = from < 0 ? state + (past + from) * channels_ : x + from * channels_;
            std::memcpy(state + i * channels_, input, static_cast<size_t>(n) * sizeof(float));
        }
    }

  private:
    static constexpr int64_t part_channels = 256;
    static void add_products(const float *a, const float *b, float *sum, int64_t n) {
        for (int64_t i = 0; i < n; ++i) sum[i] += a[i] * b[i];
    }
    const float *bias_; // null: none
    int64_t channels_, width_;
    bool is_silu_;
    std::vector<float> taps_; // [width, channels]
};

class ConvState : public StatePrimitive {
  public:
    ConvState(StatePlace place, WeightRef weight, WeightRef bias, bool is_silu)
        : StatePrimitive("conv_state", place, without_null({weight, bias})), weight_(std::move(weight)),
          bias_(std::move(bias)), is_silu_(is_silu) {}

  protected:
    std::unique_ptr<StateKernel> make_kernel() const override {
        const Shape &shape = weight_->tensor.shape();
        return std::make_unique<ConvKernel>(weight_floats(weight_), weight_floats(bias_), shape[0], shape[1], is_silu_);
    }

  private:
    WeightRef weight_, bias_;
    bool is_silu_;
};

} // namespace

TraceTensor conv_state(const TraceTensor &x, WeightRef weight, WeightRef bias, StatePlace place, bool is_silu) {
    const TraceShape &shape = x.shape();
    if (shape.lead != Lead::tokens || shape.rest.size() != 1)
        throw ShapeError("conv_state", "x must be [tokens, channels]");
    const int64_t channels = shape.rest[0];
    const Shape &taps = weight->tensor.shape();
    if (taps.size() != 2 || taps[0] != channels || taps[1] < 2 || weight->tensor.dtype() != DType::f32)
        throw ShapeError("conv_state", cat(weight->name, " must be f32 [", channels, ", 2 or more] but is ",
                                           name(weight->tensor.dtype()), " ", to_string(taps)));
    expect_f32("conv_state", bias, {channels});
    x.tracer->claim_state("conv_state", place.layer, place.index, channels * (taps[1] - 1));
    return record_primitive(std::make_shared<ConvState>(place, std::move(weight), std::move(bias), is_silu), {x},
                            shape);
}

} // namespace quire
