#include "graph/stock/expert_layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include "cuda/expert_layer.h"
#include "graph/stock/device_weights.h"
#include "graph/stock/own_nodes.h"
#include "graph/stock/stock_parts.h"

namespace quire {
namespace {

enum LayerSource {
    x_source,
    experts_source,
    weights_source,
    added_source,
    gate_source,
    up_source,
    down_source,
    bias_sources
};

const float *floats(const ggml_tensor *x, int64_t row = 0) {
    return x == nullptr ? nullptr : static_cast<const float *>(x->data) + row * x->ne[0];
}

// A row of a stack of arranged matrices, times x.
float expert_product(const ggml_tensor *stack, ArrangedType type, int64_t expert, int64_t row, int64_t n_out,
                     const std::vector<float> &x, std::vector<float> &weights) {
    const auto n_in = static_cast<int64_t>(x.size());
    weights.resize(x.size());
    const char *matrix =
        static_cast<const char *>(stack->data) + static_cast<size_t>(expert) * arranged_bytes(type, n_in, n_out);
    read_arranged_row(type, matrix, n_in, n_out, row, weights.data());
    float sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += weights[i] * x[i];
    return sum;
}

float gated_pair(const ExpertLayer &layer, float gate, float up) {
    if (layer.unit == ExpertLayer::silu_limited) {
        gate = std::min(gate, layer.limit);
        up = std::clamp(up, -layer.limit, layer.limit);
        return gate / (1 + std::exp(-layer.alpha * gate)) * (up + 1);
    }
    if (layer.unit == ExpertLayer::silu) return gate / (1 + std::exp(-gate)) * up;
    return 0.5F * gate * (1 + std::tanh(0.79788456F * gate * (1 + 0.044715F * gate * gate))) * up;
}

// The reference, for devices that compute like the CPU; not fast.
void compute_layer(ggml_tensor *out, int thread, int n_threads, void *) {
    ExpertLayer layer;
    get_params(out, layer);
    const auto up_type = static_cast<ArrangedType>(layer.up_type),
               down_type = static_cast<ArrangedType>(layer.down_type);
    const ggml_tensor *experts = out->src[experts_source];
    const int64_t n_in = out->ne[0], n_used = experts->ne[0];
    std::vector<float> x(static_cast<size_t>(n_in)), inner(static_cast<size_t>(layer.n_inner)), row;
    for (int64_t token = thread; token < ggml_nrows(out); token += n_threads) {
        float *sum = static_cast<float *>(out->data) + token * n_in;
        std::fill_n(sum, n_in, 0.0F);
        std::copy_n(floats(out->src[x_source], token), n_in, x.data());
        for (int64_t u = 0; u < n_used; ++u) {
            const auto *chosen = static_cast<const char *>(experts->data) + static_cast<size_t>(token) * experts->nb[1];
            const int64_t expert = reinterpret_cast<const int32_t *>(chosen)[u];
            const float weight = floats(out->src[weights_source])[token * n_used + u];
            auto with_bias = [&](float value, int which, int64_t i) {
                const float *bias = floats(out->src[bias_sources + which], expert);
                return bias == nullptr ? value : value + bias[i];
            };
            const float before = layer.weighs_input != 0 ? weight : 1.0F,
                        after = layer.weighs_input != 0 ? 1.0F : weight;
            for (int64_t i = 0; i < layer.n_inner; ++i) {
                auto of = [&](int which) {
                    const float made =
                        expert_product(out->src[gate_source + which], up_type, expert, i, layer.n_inner, x, row);
                    return with_bias(before * made, which, i);
                };
                inner[static_cast<size_t>(i)] = gated_pair(layer, of(0), of(1));
            }
            for (int64_t i = 0; i < n_in; ++i)
                sum[i] +=
                    after *
                    with_bias(expert_product(out->src[down_source], down_type, expert, i, n_in, inner, row), 2, i);
        }
        if (const float *added = floats(out->src[added_source], token))
            for (int64_t i = 0; i < n_in; ++i) sum[i] += added[i];
    }
}

bool set_unit(const MoeSpec &spec, ExpertLayer &layer) {
    const bool is_gelu = spec.activation == Activation::gelu_tanh;
    layer.unit = is_gelu ? ExpertLayer::gelu_tanh : ExpertLayer::silu;
    if (spec.unit == ExpertUnit::gated) return is_gelu || spec.activation == Activation::silu;
    layer.unit = ExpertLayer::silu_limited;
    return spec.unit == ExpertUnit::clamped_swiglu;
}

} // namespace

ggml_tensor *expert_layer(const StockParts &parts, const MoeWeights &matrices, const MoeSpec &spec,
                          ggml_tensor *experts, ggml_tensor *weights) {
    ExpertLayer layer;
    if (parts.graph == nullptr || parts.graph->device == nullptr || parts.copies == nullptr || parts.sums != nullptr ||
        !set_unit(spec, layer))
        return nullptr;
    auto arranged = [&](const WeightRef &weight) { return parts.copies->arranged(parts.weight(weight)); };
    const BatchMatrices::Arranged *gate = arranged(matrices.gate), *up = arranged(matrices.up),
                                  *down = arranged(matrices.down);
    if (gate == nullptr || up == nullptr || down == nullptr || gate->params.type != up->params.type) return nullptr;
    layer.up_type = static_cast<uint8_t>(up->params.type);
    layer.down_type = static_cast<uint8_t>(down->params.type);
    layer.up_variant = static_cast<uint8_t>(up->params.plan.variant);
    layer.down_variant = static_cast<uint8_t>(down->params.plan.variant);
    layer.n_inner = up->params.n_out;
    layer.n_expert = static_cast<int32_t>(matrices.up->tensor.shape()[0]);
    layer.alpha = spec.alpha;
    layer.limit = spec.limit;
    layer.weighs_input = static_cast<uint8_t>(spec.weighs_input);
    auto bias = [&](const WeightRef &weight) { return weight ? parts.weight(weight) : nullptr; };
    const std::array<ggml_tensor *, GGML_MAX_SRC> sources{parts.inputs[0],
                                                          experts,
                                                          weights,
                                                          nullptr,
                                                          gate->tensor.handle(),
                                                          up->tensor.handle(),
                                                          down->tensor.handle(),
                                                          bias(matrices.gate_bias),
                                                          bias(matrices.up_bias),
                                                          bias(matrices.down_bias)};
    ggml_tensor *node =
        ggml_custom_4d(parts.context, GGML_TYPE_F32, parts.inputs[0]->ne[0], ggml_nrows(parts.inputs[0]), 1, 1, nullptr,
                       0, compute_layer, GGML_N_TASKS_MAX, nullptr);
    std::copy(sources.begin(), sources.end(), node->src);
    set_params(node, layer);
    return has_own_node(parts.graph->device, node) ? node : nullptr;
}

ggml_tensor *expert_layer_plus(StockGraph &graph, ggml_tensor *layer, ggml_tensor *added) {
    ExpertLayer params;
    if (!get_params(layer, params) || layer->src[added_source] != nullptr || !ggml_are_same_shape(layer, added) ||
        added->type != GGML_TYPE_F32 || !ggml_is_contiguous(added))
        return nullptr;
    layer->src[added_source] = added;
    if (has_own_node(graph.device, layer)) return layer;
    layer->src[added_source] = nullptr;
    return nullptr;
}

} // namespace quire
