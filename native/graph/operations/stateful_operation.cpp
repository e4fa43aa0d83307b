#include "graph/operations/stateful_operation.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "graph/cpu/standalone_nodes.h"

namespace quire {
namespace {

constexpr size_t most_inputs = 8;

class StateNode : public CpuNode {
  public:
    StateNode(const StateKernel &kernel, const CpuNodeParts &parts, const Tensor &states)
        : kernel_(kernel), inputs_(parts.inputs), out_(parts.out), states_(reinterpret_cast<float *>(states.data())),
          n_state_(states.shape()[1]) {}

    void run(const CpuRun &run) override {
        std::array<const float *, most_inputs> inputs{};
        for (size_t i = 0; i < inputs_.size(); ++i) inputs[i] = inputs_[i]->floats();
        const StepBatch &batch = run.batch;
        const int n_parts = kernel_.n_parts(), n_sequences = run.n_sequences();
        // Work of less than a few microseconds is not worth waking another thread for.
        constexpr int64_t grain_cost = 96 << 10;
        const int64_t cost = kernel_.part_cost() * static_cast<int64_t>(batch.tokens.size()) / n_sequences;
        const auto grain = static_cast<int>(std::clamp<int64_t>(grain_cost / std::max<int64_t>(1, cost), 1, 1 << 20));
        run.team.for_each(n_sequences * n_parts, grain, [&](int item) {
            const auto sequence = static_cast<size_t>(item / n_parts);
            const int32_t begin = batch.row_begin[sequence], end = batch.row_begin[sequence + 1];
            const StateRows rows{begin, end - begin, states_ + batch.states[sequence] * n_state_};
            kernel_.run(run.kernels.recurrent(), {{inputs.data(), inputs_.size()}, out_->floats()}, rows,
                        item % n_parts);
        });
    }

  private:
    const StateKernel &kernel_; // the operation's, which the trace holds
    std::vector<CpuValue *> inputs_;
    CpuValue *out_;
    float *states_;
    int64_t n_state_;
};

const float *float_data(const ggml_tensor *tensor) { return static_cast<const float *>(tensor->data); }

// Sources: the inputs, the step's sequences as StockParts has them, the states of all slots.
void compute(ggml_tensor *out, int thread, int n_threads, void *context) {
    const auto &kernel = *static_cast<const StateKernel *>(context);
    std::array<const float *, most_inputs> inputs{};
    size_t n_inputs = 0;
    while (n_inputs + 2 < GGML_MAX_SRC && out->src[n_inputs + 2] != nullptr) {
        inputs[n_inputs] = float_data(out->src[n_inputs]);
        ++n_inputs;
    }
    const ggml_tensor *sequences = out->src[n_inputs], *states = out->src[n_inputs + 1];
    const auto *of = static_cast<const int32_t *>(sequences->data);
    const int64_t n_sequences = sequences->ne[1] - 1;
    auto *target = static_cast<float *>(out->data);
    int64_t item = 0;
    for (int64_t s = 0; s < n_sequences; ++s) {
        const int32_t *sequence = of + 2 * s;
        const int64_t begin = sequence[0], end = sequence[2];
        if (begin == end) break; // none is left
        const StateRows rows{begin, end - begin, static_cast<float *>(states->data) + sequence[1] * states->ne[0]};
        for (int part = 0; part < kernel.n_parts(); ++part, ++item)
            if (item % n_threads == thread)
                kernel.run(portable::recurrent_kernels, {{inputs.data(), n_inputs}, target}, rows, part);
    }
    if (thread != 0) return;
    const int64_t n_rows = of[2 * n_sequences]; // the others are padding, and must be numbers, too
    std::fill(target + n_rows * out->ne[0], target + ggml_nelements(out), 0.0F);
}

} // namespace

StatefulOperation::StatefulOperation(const char *name, StatePlace place, std::vector<WeightRef> weights)
    : name_(name), place_(place), weights_(std::move(weights)) {}

std::string StatefulOperation::describe() const { return cat(name_, " layer ", place_.layer, " state ", place_.index); }

const StateKernel &StatefulOperation::kernel() const {
    std::call_once(made_, [this] { kernel_ = make_kernel(); });
    return *kernel_;
}

ggml_tensor *StatefulOperation::lower(const StockParts &p) const {
    const Tensor &states = p.store->state(place_);
    if (states.device().kind() != DeviceKind::cpu) return lower_on_device(p, states);
    std::vector<ggml_tensor *> sources;
    for (ggml_tensor *input : p.inputs)
        sources.push_back(ggml_is_contiguous(input) ? input : ggml_cont(p.context, input));
    sources.push_back(p.sequences);
    sources.push_back(states.handle());
    const std::array<int64_t, 4> ne = stock_dims(p.shape, p.lead);
    const int64_t n = row_size(p.shape);
    ggml_tensor *rows =
        ggml_custom_4d(p.context, GGML_TYPE_F32, n, p.lead, 1, 1, sources.data(), static_cast<int>(sources.size()),
                       compute, GGML_N_TASKS_MAX, const_cast<StateKernel *>(&kernel()));
    return ggml_reshape_4d(p.context, rows, ne[0], ne[1], ne[2], ne[3]);
}

std::unique_ptr<CpuNode> StatefulOperation::cpu_node(const CpuNodeParts &parts) const {
    return std::make_unique<StateNode>(kernel(), parts, parts.store.state(place_));
}

bool StreamedOperation::runs_on(Device device) const {
    if (device.kind() == DeviceKind::cpu) return true;
    return has_operator() && runs_by_streams(device, input_shapes(), n_state(),
                                             [this](const StateStreams &streams) { return make_streams(streams); });
}

ggml_tensor *StreamedOperation::lower_on_device(const StockParts &p, const Tensor &states) const {
    return stock_by_streams(p, stream_inputs(p), states,
                            [this](const StateStreams &streams) { return make_streams(streams); });
}

} // namespace quire
