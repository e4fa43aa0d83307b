#include "core/error.h"
#include "graph/primitive.h"
#include "graph/primitives.h"

namespace quire {
namespace {

class HeadProduct : public Primitive {
  public:
    explicit HeadProduct(WeightRef weight) : weight_(std::move(weight)) {}
    std::string describe() const override { return "head_linear " + weight_->name; }
    std::vector<WeightRef> weights() const override { return {weight_}; }
    ggml_tensor *lower(const StockParts &p) const override {
        ggml_tensor *by_head = ggml_cont(p.context, ggml_permute(p.context, p.inputs[0], 0, 2, 1, 3));
        ggml_tensor *x = p.read_by(weight_, by_head);
        ggml_tensor *y = ggml_mul_mat(p.context, p.weight(weight_), x); // {n_out, rows, h}
        return ggml_cont(p.context, ggml_permute(p.context, y, 0, 2, 1, 3));
    }

  private:
    WeightRef weight_;
};

} // namespace

TraceTensor head_linear(const TraceTensor &x, WeightRef weight) {
    const Shape &shape = weight->tensor.shape();
    const std::vector<int64_t> &rest = x.shape().rest;
    if (rest.size() != 2 || shape.size() != 3 || shape[0] != rest[0] || shape[2] != rest[1])
        throw ShapeError(
            "head_linear",
            cat(weight->name, " must be [n_head, n_out, n_in] of x [rows, n_head, n_in] but is ", to_string(shape)));
    const TraceShape result{x.shape().lead, {shape[0], shape[1]}};
    return record_primitive(std::make_shared<HeadProduct>(std::move(weight)), {x}, result);
}

} // namespace quire
