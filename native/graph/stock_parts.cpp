#include "graph/stock_parts.h"

#include "core/error.h"
#include "graph/device_weights.h"
#include "graph/input_sums.h"

namespace quire {

ggml_tensor *StockParts::weight(const WeightRef &w) const {
    return copies == nullptr ? w->tensor.handle() : copies->of(w).handle();
}

std::array<int64_t, 4> stock_dims(const TraceShape &shape, int64_t lead) {
    std::array<int64_t, 4> ne{1, 1, 1, 1};
    const size_t n = shape.rest.size();
    for (size_t i = 0; i < n; ++i) ne[i] = shape.rest[n - 1 - i];
    ne[n] = lead;
    return ne;
}

ggml_tensor *StockParts::read_by(const WeightRef &w, ggml_tensor *x, ggml_tensor *experts) const {
    return sums == nullptr ? x : sums->watch(context, *w, x, experts, shape.lead);
}

ggml_tensor *stock_activation(ggml_context *ctx, ggml_tensor *x, Activation activation) {
    switch (activation) {
    case Activation::silu: return ggml_silu(ctx, x);
    case Activation::gelu: return ggml_gelu_erf(ctx, x);
    case Activation::gelu_tanh: return ggml_gelu(ctx, x);
    case Activation::relu: return ggml_relu(ctx, x);
    }
    throw InternalError("lower", "an activation must be known");
}

ggml_tensor *stock_gate(ggml_context *ctx, ggml_tensor *gate, ggml_tensor *up, Activation activation) {
    switch (activation) {
    case Activation::silu: return ggml_swiglu_split(ctx, gate, up);
    case Activation::gelu: return ggml_geglu_erf_split(ctx, gate, up);
    case Activation::gelu_tanh: return ggml_geglu_split(ctx, gate, up);
    case Activation::relu: return ggml_reglu_split(ctx, gate, up);
    }
    throw InternalError("lower", "an activation must be known");
}

ggml_tensor *stock_gate(ggml_context *ctx, ggml_tensor *both, Activation activation) {
    switch (activation) {
    case Activation::silu: return ggml_swiglu(ctx, both);
    case Activation::gelu: return ggml_geglu_erf(ctx, both);
    case Activation::gelu_tanh: return ggml_geglu(ctx, both);
    case Activation::relu: return ggml_reglu(ctx, both);
    }
    throw InternalError("lower", "an activation must be known");
}

ggml_tensor *stock_soft_cap(ggml_context *ctx, ggml_tensor *x, float cap) {
    return ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, x, 1.0F / cap)), cap);
}

} // namespace quire
