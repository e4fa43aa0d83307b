#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "graph/cpu/standalone_nodes.h"
#include "graph/operations/standalone_operation.h"
#include "graph/trace/shape_checks.h"
#include "graph/trace/standalone_operations.h"

namespace quire {
namespace {

int64_t last_of(const char *place, const TraceTensor &x) {
    if (x.shape().rest.empty()) throw ShapeError(place, "x has 1 dimension: expected 2 or more");
    return x.shape().rest.back();
}

int64_t parts_of(const TraceShape &shape) {
    int64_t n = 1;
    for (size_t i = 0; i + 1 < shape.rest.size(); ++i) n *= shape.rest[i];
    return n;
}

struct Rows {
    const float *weight, *bias;
    float eps;
    int64_t parts, n; // per row
};

class LayerNormNode : public CpuNode {
  public:
    LayerNormNode(const Rows &rows, CpuValue *x, CpuValue *out) : rows_(rows), x_(x), out_(out) {}
    void run(const CpuRun &run) override {
        const int64_t n = rows_.parts * rows_.n;
        run.team.for_each(run.n(x_->lead), rows_together(n), [&](int row) {
            for (int64_t i = row * n; i < (row + 1) * n; i += rows_.n)
                run.kernels.rows().layer_norm(x_->floats() + i, rows_.weight, rows_.bias, rows_.eps, out_->floats() + i,
                                              rows_.n);
        });
    }

  private:
    Rows rows_;
    CpuValue *x_, *out_;
};

// Ba, Kiros, Hinton 2016, over the last dimension.
class LayerNorm : public StandaloneOperation {
  public:
    LayerNorm(WeightRef weight, WeightRef bias, float eps, int64_t parts, int64_t n)
        : weight_(std::move(weight)), bias_(std::move(bias)), eps_(eps), parts_(parts), n_(n) {}
    std::string describe() const override { return cat("layer_norm", weight_ ? " " + weight_->name : ""); }
    std::vector<WeightRef> weights() const override { return without_null({weight_, bias_}); }
    ggml_tensor *lower(const StockParts &p) const override {
        ggml_tensor *y = ggml_norm(p.context, p.inputs[0], eps_);
        if (weight_) y = ggml_mul(p.context, y, p.weight(weight_));
        return bias_ ? ggml_add(p.context, y, p.weight(bias_)) : y;
    }
    std::unique_ptr<CpuNode> cpu_node(const CpuNodeParts &parts) const override {
        return std::make_unique<LayerNormNode>(Rows{weight_floats(weight_), weight_floats(bias_), eps_, parts_, n_},
                                               parts.inputs[0], parts.out);
    }

  private:
    WeightRef weight_, bias_;
    float eps_;
    int64_t parts_, n_;
};

class Softmax : public StandaloneOperation {
  public:
    Softmax(int64_t parts, int64_t n) : parts_(parts), n_(n) {}
    std::string describe() const override { return "softmax"; }
    ggml_tensor *lower(const StockParts &p) const override { return ggml_soft_max(p.context, p.inputs[0]); }
    RowFunction row_function() const override {
        return [parts = parts_, n = n_](std::span<const void *const> inputs, float *out) {
            const auto *x = static_cast<const float *>(inputs[0]);
            for (int64_t part = 0; part < parts; ++part, x += n, out += n) {
                const float largest = *std::max_element(x, x + n);
                float sum = 0;
                for (int64_t i = 0; i < n; ++i) sum += out[i] = std::exp(x[i] - largest);
                for (int64_t i = 0; i < n; ++i) out[i] /= sum;
            }
        };
    }

  private:
    int64_t parts_, n_;
};

class L2Norm : public StandaloneOperation {
  public:
    L2Norm(float eps, int64_t parts, int64_t n) : eps_(eps), parts_(parts), n_(n) {}
    std::string describe() const override { return "l2_norm"; }
    ggml_tensor *lower(const StockParts &p) const override { return ggml_l2_norm(p.context, p.inputs[0], eps_); }
    RowFunction row_function() const override {
        return [eps = eps_, parts = parts_, n = n_](std::span<const void *const> inputs, float *out) {
            const auto *x = static_cast<const float *>(inputs[0]);
            for (int64_t part = 0; part < parts; ++part, x += n, out += n) {
                double squares = 0;
                for (int64_t i = 0; i < n; ++i) squares += double{x[i]} * x[i];
                const float scale = 1.0F / std::max(static_cast<float>(std::sqrt(squares)), eps);
                for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale;
            }
        };
    }

  private:
    float eps_;
    int64_t parts_, n_;
};

class GroupNorm : public StandaloneOperation {
  public:
    GroupNorm(int n_groups, WeightRef weight, float eps, int64_t n)
        : n_groups_(n_groups), weight_(std::move(weight)), eps_(eps), n_(n) {}
    std::string describe() const override { return cat("group_norm ", n_groups_); }
    std::vector<WeightRef> weights() const override { return without_null({weight_}); }
    ggml_tensor *lower(const StockParts &p) const override {
        ggml_tensor *groups = ggml_reshape_3d(p.context, p.inputs[0], n_ / n_groups_, n_groups_, p.lead);
        ggml_tensor *y = ggml_reshape_2d(p.context, ggml_rms_norm(p.context, groups, eps_), n_, p.lead);
        return weight_ ? ggml_mul(p.context, y, p.weight(weight_)) : y;
    }
    RowFunction row_function() const override {
        return [w = weight_floats(weight_), eps = eps_, groups = n_groups_,
                n = n_ / n_groups_](std::span<const void *const> inputs, float *out) {
            const auto *x = static_cast<const float *>(inputs[0]);
            for (int64_t g = 0; g < groups; ++g, x += n, out += n) {
                double squares = 0;
                for (int64_t i = 0; i < n; ++i) squares += double{x[i]} * x[i];
                const float scale = 1.0F / std::sqrt(static_cast<float>(squares / static_cast<double>(n)) + eps);
                for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * (w != nullptr ? w[g * n + i] : 1.0F);
            }
        };
    }

  private:
    int n_groups_;
    WeightRef weight_;
    float eps_;
    int64_t n_;
};

} // namespace

TraceTensor layer_norm(const TraceTensor &x, WeightRef weight, WeightRef bias, float eps) {
    const int64_t n = last_of("layer_norm", x);
    expect_not_negative("layer_norm", "eps", eps);
    expect_f32("layer_norm", weight, {n});
    expect_f32("layer_norm", bias, {n});
    return record_standalone(
        std::make_shared<LayerNorm>(std::move(weight), std::move(bias), eps, parts_of(x.shape()), n), {x}, x.shape());
}

TraceTensor l2_norm(const TraceTensor &x, float eps) {
    const int64_t n = last_of("l2_norm", x);
    expect_not_negative("l2_norm", "eps", eps);
    return record_standalone(std::make_shared<L2Norm>(eps, parts_of(x.shape()), n), {x}, x.shape());
}

TraceTensor softmax(const TraceTensor &x) {
    const int64_t n = last_of("softmax", x);
    return record_standalone(std::make_shared<Softmax>(parts_of(x.shape()), n), {x}, x.shape());
}

TraceTensor group_norm(const TraceTensor &x, int n_groups, WeightRef weight, float eps) {
    const int64_t n = last_of("group_norm", x);
    if (x.shape().rest.size() != 1 || n_groups < 1 || n % n_groups != 0)
        throw ShapeError("group_norm", cat("expected x [rows, n] with n divisible by n_groups ", n_groups));
    expect_not_negative("group_norm", "eps", eps);
    expect_f32("group_norm", weight, {n});
    return record_standalone(std::make_shared<GroupNorm>(n_groups, std::move(weight), eps, n), {x}, x.shape());
}

} // namespace quire
