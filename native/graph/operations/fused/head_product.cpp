// Products in which every head has its own matrix, as latent attention has them in its absorbed form.
#include <algorithm>

#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/cpu/products.h"
#include "graph/stock/stock_parts.h"

namespace quire {
namespace {

class HeadProduct : public OperationKind {
  public:
    explicit HeadProduct(WeightRef weight) : weight_(std::move(weight)) {}
    std::string describe() const override { return "head_linear " + weight_->name; }
    std::vector<WeightRef> matrices() const override { return {weight_}; }
    ggml_tensor *lower(const StockParts &p) const override {
        ggml_tensor *by_head = ggml_cont(p.context, ggml_permute(p.context, p.inputs[0], 0, 2, 1, 3));
        ggml_tensor *x = p.read_by(weight_, by_head);
        ggml_tensor *y = ggml_mul_mat(p.context, p.weight(weight_), x); // {n_out, rows, h}
        return ggml_cont(p.context, ggml_permute(p.context, y, 0, 2, 1, 3));
    }
    void add_nodes(CpuLowering &lowering, int i) const override;

  private:
    WeightRef weight_;
};

// The rows of a head side by side, in the form that its matrix wants; then products; then the heads of a row side by
// side.
class HeadProductNode : public CpuNode {
  public:
    struct Values {
        CpuValue *x, *gathered; // [h * n_in], [h] in the form of the matrices
        CpuValue *by_head, *out; // [h] of n_out, [h * n_out]
    };
    HeadProductNode(std::vector<const Matrix *> matrices, Values values)
        : matrices_(std::move(matrices)), values_(values) {}
    void run(const CpuRun &run) override;

  private:
    std::vector<const Matrix *> matrices_;
    Values values_;
};

void HeadProductNode::run(const CpuRun &run) {
    const int n_rows = run.n(values_.x->lead), n_heads = static_cast<int>(matrices_.size());
    if (n_rows == 0) return;
    const int64_t n_in = matrices_.front()->n_in, n_out = matrices_.front()->n_out;
    const int64_t row_bytes = matrices_.front()->x_row_bytes(matrices_.front()->form(n_rows));
    run.team.for_each(n_rows, rows_together(n_heads * n_in), [&](int row) {
        const float *x = values_.x->floats() + row * n_heads * n_in;
        for (int head = 0; head < n_heads; ++head, x += n_in)
            to_form(run.kernels, *matrices_.front(), n_rows, x, values_.gathered->data, int64_t{head} * n_rows + row);
    });
    float *by_head = n_rows == 1 ? values_.out->floats() : values_.by_head->floats(); // with one row both orders agree
    std::vector<Product> products(matrices_.size());
    for (int head = 0; head < n_heads; ++head) {
        Product &product = products[static_cast<size_t>(head)];
        const int64_t first = int64_t{head} * n_rows;
        product.factors = {{matrices_[static_cast<size_t>(head)], values_.gathered->data + first * row_bytes, nullptr,
                            by_head + first * n_out}};
        product.n_rows = product.form_rows = n_rows;
    }
    run_products(run, products);
    if (n_rows == 1) return;
    run.team.for_each(n_rows, rows_together(n_heads * n_out), [&](int row) {
        float *out = values_.out->floats() + row * n_heads * n_out;
        for (int head = 0; head < n_heads; ++head)
            std::copy_n(by_head + (int64_t{head} * n_rows + row) * n_out, n_out, out + head * n_out);
    });
}

void HeadProduct::add_nodes(CpuLowering &lowering, int i) const {
    const std::vector<const Matrix *> &matrices = lowering.matrices().experts(weight_);
    const Lead lead = lowering.lead(i);
    const auto n_heads = static_cast<int64_t>(matrices.size());
    const auto float_bytes = static_cast<int64_t>(sizeof(float));
    const HeadProductNode::Values v{
        lowering.value(lowering.input(i)), lowering.program().value(lead, matrices.front()->x_row_bytes(), n_heads),
        lowering.program().value(lead, matrices.front()->n_out * float_bytes, n_heads), lowering.new_value(i)};
    lowering.program().add(std::make_unique<HeadProductNode>(matrices, v), {v.x, v.gathered, v.by_head, v.out});
}

} // namespace

TraceTensor head_linear(const TraceTensor &x, WeightRef weight) {
    const Shape &shape = weight->tensor.shape();
    const std::vector<int64_t> &rest = x.shape().rest;
    if (rest.size() != 2 || shape.size() != 3 || shape[0] != rest[0] || shape[2] != rest[1])
        throw ShapeError("head_linear", cat(weight->name, " is ", to_string(shape),
                                            ": expected [n_head, n_out, n_in] of x [rows, n_head, n_in]"));
    const TraceShape result{x.shape().lead, {shape[0], shape[1]}};
    return x.tracer->record(std::make_shared<HeadProduct>(std::move(weight)), {x}, result);
}

} // namespace quire
