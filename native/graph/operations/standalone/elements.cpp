#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "graph/operations/standalone_operation.h"
#include "graph/trace/standalone_operations.h"

namespace quire {
namespace {

int64_t size_of(const TraceShape &shape) {
    int64_t n = 1;
    for (int64_t dim : shape.rest) n *= dim;
    return n;
}

float softplus(float x) { return x > 20.0F ? x : std::log1p(std::exp(x)); }
float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

struct Named {
    const char *name;
    float (*value)(float);
    ggml_tensor *(*lower)(ggml_context *, ggml_tensor *);
};

const Named &named(Function function) {
    static const Named table[] = {
        {"sigmoid", sigmoid, ggml_sigmoid},
        {"softplus", softplus, ggml_softplus},
        {"tanh", [](float x) { return std::tanh(x); }, ggml_tanh},
        {"exp", [](float x) { return std::exp(x); }, ggml_exp},
        {"relu_squared", [](float x) { return x > 0 ? x * x : 0.0F; },
         [](ggml_context *ctx, ggml_tensor *x) { return ggml_sqr(ctx, ggml_relu(ctx, x)); }},
        {"quick_gelu", [](float x) { return x * sigmoid(1.702F * x); }, ggml_gelu_quick},
        {"negate", [](float x) { return -x; }, ggml_neg},
        {"sqrt", [](float x) { return std::sqrt(x); }, ggml_sqrt},
    };
    return table[static_cast<size_t>(function)];
}

// One function, applied to every number.
template <class Value> RowFunction each(int64_t n, Value value) {
    return [n, value](std::span<const void *const> inputs, float *out) {
        const auto *x = static_cast<const float *>(inputs[0]);
        for (int64_t i = 0; i < n; ++i) out[i] = value(x[i]);
    };
}

class Apply : public StandaloneOperation {
  public:
    Apply(Function function, int64_t n) : function_(function), n_(n) {}
    std::string describe() const override { return named(function_).name; }
    ggml_tensor *lower(const StockParts &p) const override { return named(function_).lower(p.context, p.inputs[0]); }
    RowFunction row_function() const override { return each(n_, named(function_).value); }

  private:
    Function function_;
    int64_t n_;
};

class Clamp : public StandaloneOperation {
  public:
    Clamp(float low, float high, int64_t n) : low_(low), high_(high), n_(n) {}
    std::string describe() const override { return cat("clamp ", low_, " to ", high_); }
    ggml_tensor *lower(const StockParts &p) const override {
        return ggml_clamp(p.context, ggml_cont(p.context, p.inputs[0]), low_, high_); // in place, so of a copy
    }
    RowFunction row_function() const override {
        return each(n_, [low = low_, high = high_](float x) { return std::clamp(x, low, high); });
    }

  private:
    float low_, high_;
    int64_t n_;
};

class XieluOperation : public StandaloneOperation {
  public:
    XieluOperation(Xielu parameters, int64_t n) : parameters_(parameters), n_(n) {}
    std::string describe() const override { return cat("xielu ", parameters_.alpha_p, " ", parameters_.alpha_n); }
    ggml_tensor *lower(const StockParts &p) const override {
        // ggml's operator adds beta to alpha_n and passes both through softplus, whose inverse is given here.
        const Xielu &x = parameters_;
        return ggml_xielu(p.context, p.inputs[0], inverse(x.alpha_n - x.beta), inverse(x.alpha_p), x.beta, x.eps);
    }
    RowFunction row_function() const override {
        return each(n_, [p = parameters_](float x) {
            if (x > 0) return p.alpha_p * x * x + p.beta * x;
            return (std::expm1(std::min(x, p.eps)) - x) * p.alpha_n + p.beta * x;
        });
    }

  private:
    static float inverse(float softplus_value) { return std::log(std::expm1(softplus_value)); }
    Xielu parameters_;
    int64_t n_;
};

class ClampedSwiglu : public StandaloneOperation {
  public:
    ClampedSwiglu(float alpha, float limit, int64_t n) : alpha_(alpha), limit_(limit), n_(n) {}
    std::string describe() const override { return cat("clamped_swiglu ", alpha_, " ", limit_); }
    ggml_tensor *lower(const StockParts &p) const override {
        return ggml_swiglu_oai(p.context, p.inputs[0], p.inputs[1], alpha_, limit_);
    }
    RowFunction row_function() const override {
        return [*this](std::span<const void *const> inputs, float *out) {
            const auto *gate = static_cast<const float *>(inputs[0]), *up = static_cast<const float *>(inputs[1]);
            for (int64_t i = 0; i < n_; ++i) {
                const float g = std::min(gate[i], limit_);
                out[i] = g * sigmoid(alpha_ * g) * (std::clamp(up[i], -limit_, limit_) + 1.0F);
            }
        };
    }

  private:
    float alpha_, limit_;
    int64_t n_;
};

} // namespace

TraceTensor apply(const TraceTensor &x, Function function) {
    return record_standalone(std::make_shared<Apply>(function, size_of(x.shape())), {x}, x.shape());
}

TraceTensor clamp(const TraceTensor &x, float low, float high) {
    if (!(low <= high)) throw ShapeError("clamp", cat("low ", low, " is above high ", high));
    return record_standalone(std::make_shared<Clamp>(low, high, size_of(x.shape())), {x}, x.shape());
}

TraceTensor xielu(const TraceTensor &x, Xielu parameters) {
    if (!(parameters.alpha_p > 0) || !(parameters.alpha_n > parameters.beta) || !std::isfinite(parameters.eps))
        throw ShapeError("xielu", cat("alpha_p ", parameters.alpha_p, ", alpha_n ", parameters.alpha_n, " and beta ",
                                      parameters.beta, ": expected alpha_p above 0 and alpha_n above beta"));
    return record_standalone(std::make_shared<XieluOperation>(parameters, size_of(x.shape())), {x}, x.shape());
}

TraceTensor clamped_swiglu(const TraceTensor &gate, const TraceTensor &up, float alpha, float limit) {
    if (!(gate.shape() == up.shape())) throw ShapeError("clamped_swiglu", "gate and up have different shapes");
    if (!(limit > 0)) throw ShapeError("clamped_swiglu", cat("limit is ", limit, ": expected a value above 0"));
    return record_standalone(std::make_shared<ClampedSwiglu>(alpha, limit, size_of(gate.shape())), {gate, up},
                             gate.shape());
}

} // namespace quire
