#include "graph/operations/fused/elements.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/operations/fused/linear.h"
#include "graph/stock/expert_layers.h"
#include "graph/stock/row_products.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

// Writes n numbers; b is null where there is no second operand.
using Elements = std::function<void(const RowKernels &, const float *a, const float *b, float *out, int64_t n)>;

class ElementNode : public CpuNode {
  public:
    ElementNode(Elements elements, CpuValue *a, CpuValue *b, CpuValue *out)
        : elements_(std::move(elements)), a_(a), b_(b), out_(out) {}
    void run(const CpuRun &run) override {
        const int64_t n = a_->n_floats();
        run.team.for_each(run.n(a_->lead), rows_together(n), [&](int row) {
            const float *b = b_ == nullptr ? nullptr : b_->floats() + row * n;
            elements_(run.kernels.rows(), a_->floats() + row * n, b, out_->floats() + row * n, n);
        });
    }

  private:
    Elements elements_;
    CpuValue *a_, *b_, *out_;
};

void add_element_node(CpuLowering &lowering, int i, Elements elements) {
    CpuValue *a = lowering.value(lowering.input(i));
    CpuValue *b = lowering.n_inputs(i) > 1 ? lowering.value(lowering.input(i, 1)) : nullptr;
    CpuValue *out = lowering.new_value(i);
    std::vector<CpuValue *> used{a, out};
    if (b != nullptr) used.push_back(b);
    lowering.program().add(std::make_unique<ElementNode>(std::move(elements), a, b, out), used);
}

class Multiply : public OperationKind {
  public:
    std::string describe() const override { return "multiply"; }
    ggml_tensor *lower(const StockParts &p) const override { return ggml_mul(p.context, p.inputs[0], p.inputs[1]); }
    void add_nodes(CpuLowering &lowering, int i) const override {
        add_element_node(lowering, i,
                         [](const RowKernels &kernels, const float *a, const float *b, float *out, int64_t n) {
                             kernels.multiply(a, b, out, n);
                         });
    }
};

class Scale : public OperationKind {
  public:
    explicit Scale(float factor) : factor_(factor) {}
    std::string describe() const override { return cat("scale ", factor_); }
    OutputStep output_step() const override { return OutputStep::follows_product; }
    ggml_tensor *lower(const StockParts &p) const override { return ggml_scale(p.context, p.inputs[0], factor_); }
    void add_nodes(CpuLowering &lowering, int i) const override {
        add_element_node(lowering, i,
                         [factor = factor_](const RowKernels &kernels, const float *x, const float *, float *out,
                                            int64_t n) { kernels.scale(x, factor, out, n); });
    }

  private:
    float factor_;
};

class SoftCap : public OperationKind { // cap * tanh(x / cap)
  public:
    explicit SoftCap(float cap) : cap_(cap) {}
    std::string describe() const override { return cat("soft_cap ", cap_); }
    OutputStep output_step() const override { return OutputStep::follows_product; }
    ggml_tensor *lower(const StockParts &p) const override { return stock_soft_cap(p.context, p.inputs[0], cap_); }
    void add_nodes(CpuLowering &lowering, int i) const override {
        add_element_node(lowering, i,
                         [cap = cap_](const RowKernels &kernels, const float *x, const float *, float *out, int64_t n) {
                             kernels.soft_cap(x, cap, out, n);
                         });
    }

  private:
    float cap_;
};

// Rows that are rounded for products anyway are activated there.
bool only_products_read(const CpuLowering &lowering, int i) {
    if (i == lowering.trace().hidden || lowering.rest(i).size() != 1) return false;
    return std::ranges::all_of(lowering.users(i), [&](int user) { return user >= 0 && lowering.as<Linear>(user); });
}

class Activate : public OperationKind {
  public:
    explicit Activate(Activation activation) : activation_(activation) {}
    std::string describe() const override { return "activate"; }
    ggml_tensor *lower(const StockParts &p) const override {
        return stock_activation(p.context, p.inputs[0], activation_);
    }
    void add_nodes(CpuLowering &lowering, int i) const override {
        if (only_products_read(lowering, i)) {
            lowering.left_activation(i) = activation_;
            return lowering.set_value(i, lowering.value(lowering.input(i)));
        }
        add_element_node(lowering, i,
                         [activation = activation_](const RowKernels &kernels, const float *x, const float *,
                                                    float *out,
                                                    int64_t n) { kernels.activate(activation, x, out, n); });
    }

  private:
    Activation activation_;
};

} // namespace

ggml_tensor *Add::lower(const StockParts &p) const {
    for (size_t i : {0, 1})
        if (p.is_only_read(i)) {
            if (ggml_tensor *sum = row_product_plus(*p.graph, p.inputs[i], p.inputs[1 - i])) return sum;
            if (ggml_tensor *sum = expert_layer_plus(*p.graph, p.inputs[i], p.inputs[1 - i])) return sum;
        }
    return ggml_add(p.context, p.inputs[0], p.inputs[1]);
}

void Add::add_nodes(CpuLowering &lowering, int i) const {
    add_element_node(lowering, i, [](const RowKernels &kernels, const float *a, const float *b, float *out, int64_t n) {
        kernels.add(a, b, out, n);
    });
}

namespace {

// Rows of a merged product.
bool are_halves(const ggml_tensor *gate, const ggml_tensor *up) {
    const ggml_tensor *both = gate->view_src;
    return gate->op == GGML_OP_VIEW && up->op == GGML_OP_VIEW && both == up->view_src && ggml_is_contiguous(both) &&
           both->ne[0] == 2 * gate->ne[0] && ggml_nrows(both) == ggml_nrows(gate) && ggml_are_same_shape(gate, up) &&
           gate->view_offs == 0 && up->view_offs == static_cast<size_t>(gate->ne[0]) * sizeof(float);
}

} // namespace

ggml_tensor *Glu::lower(const StockParts &p) const {
    if (p.is_only_read(0) && p.is_only_read(1))
        if (ggml_tensor *gated = gated_row_product(*p.graph, p.inputs[0], p.inputs[1], activation_)) return gated;
    if (are_halves(p.inputs[0], p.inputs[1])) return stock_gate(p.context, p.inputs[0]->view_src, activation_);
    return stock_gate(p.context, p.inputs[0], p.inputs[1], activation_);
}

void Glu::add_nodes(CpuLowering &lowering, int i) const {
    add_element_node(lowering, i,
                     [activation = activation_](const RowKernels &kernels, const float *gate, const float *up,
                                                float *out, int64_t n) { kernels.gate(activation, gate, up, out, n); });
}

TraceTensor add(const TraceTensor &a, const TraceTensor &b) {
    expect_numbers("add", a);
    expect_equal("add", a, b);
    return a.tracer->record(std::make_shared<Add>(), {a, b}, a.shape());
}

TraceTensor multiply(const TraceTensor &a, const TraceTensor &b) {
    expect_numbers("multiply", a);
    expect_equal("multiply", a, b);
    return a.tracer->record(std::make_shared<Multiply>(), {a, b}, a.shape());
}

TraceTensor scale(const TraceTensor &x, float factor) {
    expect_numbers("scale", x);
    if (!std::isfinite(factor)) throw ShapeError("scale", cat("the factor is ", factor, ": expected a finite number"));
    return x.tracer->record(std::make_shared<Scale>(factor), {x}, x.shape());
}

TraceTensor glu(const TraceTensor &gate, const TraceTensor &up, Activation activation) {
    expect_numbers("glu", gate);
    expect_equal("glu", gate, up);
    return gate.tracer->record(std::make_shared<Glu>(activation), {gate, up}, gate.shape());
}

TraceTensor activate(const TraceTensor &x, Activation activation) {
    expect_numbers("activate", x);
    return x.tracer->record(std::make_shared<Activate>(activation), {x}, x.shape());
}

TraceTensor soft_cap(const TraceTensor &x, float cap) {
    expect_numbers("soft_cap", x);
    expect_positive("soft_cap", "cap", cap);
    return x.tracer->record(std::make_shared<SoftCap>(cap), {x}, x.shape());
}

} // namespace quire
