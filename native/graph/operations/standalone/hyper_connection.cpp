#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "graph/operations/standalone_operation.h"
#include "graph/trace/shape_checks.h"
#include "graph/trace/standalone_operations.h"

namespace quire {
namespace {

float hyper_sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

void hyper_softmax(float *row, int n) {
    const float largest = *std::max_element(row, row + n);
    float total = 0;
    for (int i = 0; i < n; ++i) total += row[i] = std::exp(row[i] - largest);
    for (int i = 0; i < n; ++i) row[i] /= total;
}

// Sums of rows, or of columns, become 1.
void divide_by_sums(float *matrix, int n, bool of_rows, float eps) {
    for (int i = 0; i < n; ++i) {
        float *first = matrix + (of_rows ? i * n : i);
        const int stride = of_rows ? 1 : n;
        float sum = 0;
        for (int j = 0; j < n; ++j) sum += first[j * stride];
        for (int j = 0; j < n; ++j) first[j * stride] /= sum + eps;
    }
}

// The i-th of the parts of [n_tokens, 2 n + n * n]: n, n and n * n numbers.
ggml_tensor *hyper_part(ggml_context *ctx, ggml_tensor *x, int64_t n, int i) {
    const size_t begin = static_cast<size_t>(i * n) * sizeof(float);
    return ggml_cont(ctx, ggml_view_2d(ctx, x, i == 2 ? n * n : n, x->ne[1], x->nb[1], begin));
}

class HyperWeights : public StandaloneOperation {
  public:
    HyperWeights(WeightRef scale, WeightRef base, HyperConnection parameters)
        : scale_(std::move(scale)), base_(std::move(base)), p_(parameters) {}
    std::string describe() const override { return cat("hyper_weights ", p_.n, " streams"); }
    std::vector<WeightRef> weights() const override { return {scale_, base_}; }
    size_t n_tensors() const override { return 40 + 14 * static_cast<size_t>(p_.iterations); }
    ggml_tensor *lower(const StockParts &p) const override;
    RowFunction row_function() const override {
        return [p = p_, scale = weight_floats(scale_), base = weight_floats(base_)](std::span<const void *const> inputs,
                                                                                    float *out) {
            const auto *x = static_cast<const float *>(inputs[0]);
            const int n = p.n;
            for (int i = 0; i < 2 * n + n * n; ++i) out[i] = x[i] * scale[std::min(i / n, 2)] + base[i];
            for (int i = 0; i < n; ++i) out[i] = hyper_sigmoid(out[i]) + p.eps;
            for (int i = n; i < 2 * n; ++i) out[i] = 2 * hyper_sigmoid(out[i]);
            float *mix = out + 2 * n;
            for (int i = 0; i < n; ++i) hyper_softmax(mix + i * n, n);
            for (int i = 0; i < n * n; ++i) mix[i] += p.eps;
            divide_by_sums(mix, n, false, p.eps);
            for (int i = 1; i < p.iterations; ++i) {
                divide_by_sums(mix, n, true, p.eps);
                divide_by_sums(mix, n, false, p.eps);
            }
        };
    }

  private:
    WeightRef scale_, base_;
    HyperConnection p_;
};

ggml_tensor *HyperWeights::lower(const StockParts &p) const {
    ggml_context *ctx = p.context;
    const int64_t n = p_.n;
    auto scaled = [&](int i) {
        ggml_tensor *scale = ggml_view_1d(ctx, p.weight(scale_), 1, static_cast<size_t>(i) * sizeof(float));
        ggml_tensor *base =
            ggml_view_1d(ctx, p.weight(base_), i == 2 ? n * n : n, static_cast<size_t>(i * n) * sizeof(float));
        return ggml_add(ctx, ggml_mul(ctx, hyper_part(ctx, p.inputs[0], n, i), scale), base);
    };
    ggml_tensor *in = ggml_scale_bias(ctx, ggml_sigmoid(ctx, scaled(0)), 1.0F, p_.eps);
    ggml_tensor *out = ggml_scale(ctx, ggml_sigmoid(ctx, scaled(1)), 2.0F);
    ggml_tensor *mix = ggml_reshape_3d(ctx, scaled(2), n, n, p.lead); // {columns, rows, n_tokens}
    mix = ggml_scale_bias(ctx, ggml_soft_max(ctx, mix), 1.0F, p_.eps);
    auto turned = [&] { mix = ggml_cont(ctx, ggml_permute(ctx, mix, 1, 0, 2, 3)); };
    auto divide = [&] { mix = ggml_div(ctx, mix, ggml_scale_bias(ctx, ggml_sum_rows(ctx, mix), 1.0F, p_.eps)); };
    for (int i = 0; i < p_.iterations; ++i) {
        if (i > 0) divide();
        turned();
        divide();
        turned();
    }
    return ggml_concat(ctx, ggml_concat(ctx, in, out, 0), ggml_reshape_2d(ctx, mix, n * n, p.lead), 0);
}

// Inputs: streams, weights.
class HyperInput : public StandaloneOperation {
  public:
    HyperInput(int64_t n, int64_t dim) : n_(n), dim_(dim) {}
    std::string describe() const override { return cat("hyper_input of ", n_, " streams"); }
    ggml_tensor *lower(const StockParts &p) const override {
        ggml_context *ctx = p.context;
        ggml_tensor *streams = ggml_cont(ctx, ggml_permute(ctx, p.inputs[0], 1, 0, 2, 3)); // {n, dim, n_tokens}
        ggml_tensor *weights = ggml_reshape_3d(ctx, hyper_part(ctx, p.inputs[1], n_, 0), n_, 1, p.lead);
        ggml_tensor *sum = ggml_sum_rows(ctx, ggml_mul(ctx, streams, weights)); // {1, dim, n_tokens}
        return ggml_reshape_2d(ctx, sum, dim_, p.lead);
    }
    RowFunction row_function() const override {
        return [n = n_, dim = dim_](std::span<const void *const> inputs, float *out) {
            const auto *streams = static_cast<const float *>(inputs[0]);
            const auto *weights = static_cast<const float *>(inputs[1]);
            for (int64_t i = 0; i < dim; ++i) out[i] = weights[0] * streams[i];
            for (int64_t s = 1; s < n; ++s)
                for (int64_t i = 0; i < dim; ++i) out[i] += weights[s] * streams[s * dim + i];
        };
    }

  private:
    int64_t n_, dim_;
};

// Inputs: streams, y, weights.
class HyperOutput : public StandaloneOperation {
  public:
    HyperOutput(int64_t n, int64_t dim) : n_(n), dim_(dim) {}
    std::string describe() const override { return cat("hyper_output of ", n_, " streams"); }
    ggml_tensor *lower(const StockParts &p) const override {
        ggml_context *ctx = p.context;
        ggml_tensor *streams = ggml_cont(ctx, ggml_permute(ctx, p.inputs[0], 1, 0, 2, 3)); // {n, dim, n_tokens}
        ggml_tensor *mix = ggml_reshape_3d(ctx, hyper_part(ctx, p.inputs[2], n_, 2), n_, n_, p.lead);
        mix = ggml_cont(ctx, ggml_permute(ctx, mix, 1, 0, 2, 3)); // {from, to, n_tokens}
        ggml_tensor *mixed = nullptr;
        for (int64_t k = 0; k < n_; ++k) { // exactly, where products on devices would be rounded
            ggml_tensor *row =
                ggml_view_3d(ctx, mix, n_, 1, p.lead, mix->nb[1], mix->nb[2], static_cast<size_t>(k) * mix->nb[1]);
            ggml_tensor *one = ggml_sum_rows(ctx, ggml_mul(ctx, streams, row));
            one = ggml_reshape_3d(ctx, one, dim_, 1, p.lead);
            mixed = mixed == nullptr ? one : ggml_concat(ctx, mixed, one, 1);
        }
        ggml_tensor *weights = ggml_reshape_3d(ctx, hyper_part(ctx, p.inputs[2], n_, 1), 1, n_, p.lead);
        ggml_tensor *y = ggml_repeat_4d(ctx, ggml_reshape_3d(ctx, p.inputs[1], dim_, 1, p.lead), dim_, n_, p.lead, 1);
        return ggml_add(ctx, mixed, ggml_mul(ctx, y, weights));
    }
    size_t n_tensors() const override { return 24 + 5 * static_cast<size_t>(n_); }
    RowFunction row_function() const override {
        return [n = n_, dim = dim_](std::span<const void *const> inputs, float *out) {
            const auto *streams = static_cast<const float *>(inputs[0]);
            const auto *y = static_cast<const float *>(inputs[1]), *weights = static_cast<const float *>(inputs[2]);
            const float *mix = weights + 2 * n;
            for (int64_t k = 0; k < n; ++k, out += dim) {
                for (int64_t i = 0; i < dim; ++i) out[i] = weights[n + k] * y[i];
                for (int64_t j = 0; j < n; ++j)
                    for (int64_t i = 0; i < dim; ++i) out[i] += mix[j * n + k] * streams[j * dim + i];
            }
        };
    }

  private:
    int64_t n_, dim_;
};

// The number of streams.
int64_t expect_streams(const char *place, const TraceTensor &streams, const TraceTensor &weights, bool has_mix) {
    expect_rank(place, "streams", streams, 2);
    const int64_t n = streams.shape().rest[0], n_weights = has_mix ? 2 * n + n * n : n;
    if (weights.shape().lead != streams.shape().lead || weights.shape().rest.size() != 1 ||
        weights.shape().rest[0] < n_weights)
        throw ShapeError(
            place, cat("weights ", shape_text(weights.shape()), " do not fit streams ", shape_text(streams.shape())));
    return n;
}

} // namespace

TraceTensor hyper_weights(const TraceTensor &x, WeightRef scale, WeightRef base, HyperConnection p) {
    const int64_t n = p.n;
    if (n < 1 || n > 64 || p.iterations < 1 || x.shape().rest != std::vector<int64_t>{2 * n + n * n})
        throw ShapeError("hyper_weights", cat("x is ", shape_text(x.shape()), ": expected 2 n + n * n numbers for n = ",
                                              n, " streams, and 1 iteration or more"));
    expect_positive("hyper_weights", "eps", p.eps);
    expect_f32("hyper_weights", scale, {3});
    expect_f32("hyper_weights", base, {2 * n + n * n});
    return record_standalone(std::make_shared<HyperWeights>(std::move(scale), std::move(base), p), {x}, x.shape());
}

TraceTensor hyper_input(const TraceTensor &streams, const TraceTensor &weights) {
    const int64_t n = expect_streams("hyper_input", streams, weights, false), dim = streams.shape().rest[1];
    return record_standalone(std::make_shared<HyperInput>(n, dim), {streams, weights}, {streams.shape().lead, {dim}});
}

TraceTensor hyper_output(const TraceTensor &streams, const TraceTensor &y, const TraceTensor &weights) {
    const int64_t n = expect_streams("hyper_output", streams, weights, true), dim = streams.shape().rest[1];
    if (!(y.shape() == TraceShape{streams.shape().lead, {dim}}))
        throw ShapeError("hyper_output", cat("y is ", shape_text(y.shape()), ": expected ", dim, " numbers"));
    return record_standalone(std::make_shared<HyperOutput>(n, dim), {streams, y, weights}, streams.shape());
}

} // namespace quire
