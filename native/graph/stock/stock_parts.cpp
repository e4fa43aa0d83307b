#include "graph/stock/stock_parts.h"

#include <cstring>

#include "core/error.h"
#include "graph/stock/device_weights.h"
#include "graph/stock/input_sums.h"
#include "graph/trace/boundary.h"

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

ggml_tensor *device_rows(ggml_context *context, const Boundary &boundary, int64_t lead) {
    const std::array<int64_t, 4> ne = stock_dims(boundary.shape, lead);
    size_t strides[3];
    size_t stride = sizeof(float);
    for (size_t i = 0; i < 3; ++i) strides[i] = stride *= static_cast<size_t>(ne[i]);
    return ggml_view_4d(context, boundary.device->handle(), ne[0], ne[1], ne[2], ne[3], strides[0], strides[1],
                        strides[2], 0);
}

ggml_tensor *StockParts::read_by(const WeightRef &w, ggml_tensor *x, ggml_tensor *experts) const {
    return sums == nullptr ? x : sums->watch(context, *w, x, experts, shape.lead);
}

StockNormed before_norm(ggml_tensor *x) {
    StockNormed found{x};
    ggml_tensor *norm = x;
    if (x->op == GGML_OP_MUL && x->src[0]->op == GGML_OP_RMS_NORM && ggml_nelements(x->src[1]) == x->ne[0]) {
        found.weight = x->src[1];
        norm = x->src[0];
    }
    if (norm->op != GGML_OP_RMS_NORM) return found;
    found.x = norm->src[0];
    found.is_normed = true;
    std::memcpy(&found.eps, norm->op_params, sizeof(found.eps));
    return found;
}

ggml_tensor *stock_activation(ggml_context *ctx, ggml_tensor *x, Activation activation) {
    switch (activation) {
    case Activation::silu: return ggml_silu(ctx, x);
    case Activation::gelu: return ggml_gelu_erf(ctx, x);
    case Activation::gelu_tanh: return ggml_gelu(ctx, x);
    case Activation::relu: return ggml_relu(ctx, x);
    }
    throw InternalError("lower", "unknown activation");
}

namespace {

ggml_glu_op glu_op_of(Activation activation) {
    switch (activation) {
    case Activation::silu: return GGML_GLU_OP_SWIGLU;
    case Activation::gelu: return GGML_GLU_OP_GEGLU_ERF;
    case Activation::gelu_tanh: return GGML_GLU_OP_GEGLU;
    case Activation::relu: return GGML_GLU_OP_REGLU;
    }
    throw InternalError("lower", "unknown activation");
}

} // namespace

ggml_tensor *stock_gate(ggml_context *ctx, ggml_tensor *gate, ggml_tensor *up, Activation activation) {
    return ggml_glu_split(ctx, gate, up, glu_op_of(activation));
}

ggml_tensor *stock_gate(ggml_context *ctx, ggml_tensor *both, Activation activation) {
    return ggml_glu(ctx, both, glu_op_of(activation), false);
}

ggml_tensor *stock_soft_cap(ggml_context *ctx, ggml_tensor *x, float cap) {
    return ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, x, 1.0F / cap)), cap);
}

} // namespace quire
