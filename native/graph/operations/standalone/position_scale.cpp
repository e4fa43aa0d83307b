#include <cmath>

#include "core/error.h"
#include "graph/operations/standalone_operation.h"
#include "graph/trace/standalone_operations.h"

namespace quire {
namespace {

class PositionScaleOperation : public StandaloneOperation {
  public:
    PositionScaleOperation(PositionScale parameters, int64_t n) : parameters_(parameters), n_(n) {}
    std::string describe() const override { return cat("scale_by_position ", parameters_.beta); }
    ggml_tensor *lower(const StockParts &p) const override {
        ggml_context *ctx = p.context;
        ggml_tensor *position = ggml_cast(ctx, p.inputs[1], GGML_TYPE_F32);
        const auto n_ctx = static_cast<float>(parameters_.n_ctx);
        ggml_tensor *whole = ggml_floor(
            ctx, ggml_scale_bias(ctx, position, 1.0F / n_ctx, static_cast<float>(parameters_.offset) / n_ctx));
        ggml_tensor *factor = ggml_log(ctx, ggml_scale_bias(ctx, whole, 1.0F, 1.0F));
        factor = ggml_scale_bias(ctx, factor, parameters_.beta, 1.0F);
        const bool is_3d = p.shape.rest.size() == 2;
        factor = is_3d ? ggml_reshape_3d(ctx, factor, 1, 1, p.lead) : ggml_reshape_2d(ctx, factor, 1, p.lead);
        return ggml_mul(ctx, p.inputs[0], factor);
    }
    RowFunction row_function() const override {
        return [p = parameters_, n = n_](std::span<const void *const> inputs, float *out) {
            const auto *x = static_cast<const float *>(inputs[0]);
            const int64_t position = *static_cast<const int32_t *>(inputs[1]) + p.offset;
            const double whole = std::floor(static_cast<double>(position) / static_cast<double>(p.n_ctx));
            const auto factor = static_cast<float>(1.0 + p.beta * std::log1p(whole));
            for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
        };
    }

  private:
    PositionScale parameters_;
    int64_t n_;
};

} // namespace

TraceTensor scale_by_position(const TraceTensor &x, const TraceTensor &positions, PositionScale parameters) {
    if (!positions.shape().rest.empty() || x.shape().lead != positions.shape().lead || x.shape().rest.empty() ||
        x.shape().rest.size() > 2)
        throw ShapeError("scale_by_position", "expected x [tokens, ...] and positions [tokens]");
    if (parameters.n_ctx < 1 || !std::isfinite(parameters.beta))
        throw ShapeError("scale_by_position", cat("n_ctx is ", parameters.n_ctx, ": expected a positive number"));
    int64_t n = 1;
    for (int64_t dim : x.shape().rest) n *= dim;
    return record_standalone(std::make_shared<PositionScaleOperation>(parameters, n), {x, positions}, x.shape());
}

} // namespace quire
