#include <array>

#include "core/error.h"
#include "graph/operations/standalone_operation.h"
#include "graph/trace/standalone_operations.h"

namespace quire {
namespace {

enum class Operator { add, multiply };
const char *name_of(Operator op) { return op == Operator::add ? "add" : "multiply"; }

// Up to three dimensions after the rows, and how far apart their elements lie in the second operand (0: repeated).
struct Walk {
    std::array<int64_t, 3> n{1, 1, 1}, step{0, 0, 0};
};

Walk walk_of(const char *place, const std::vector<int64_t> &a, const std::vector<int64_t> &b) {
    const bool fits = a.size() <= 3 && b.size() <= a.size();
    Walk walk;
    int64_t step = 1;
    for (size_t i = 0; fits && i < a.size(); ++i) { // from the last
        const int64_t n = a[a.size() - 1 - i], m = i < b.size() ? b[b.size() - 1 - i] : 1;
        if (m != n && m != 1)
            throw ShapeError(place, cat("dimensions ", n, " and ", m, " do not match: expected equal ones, or 1"));
        walk.n[2 - i] = n;
        walk.step[2 - i] = m == 1 ? 0 : step;
        step *= m;
    }
    if (!fits) throw ShapeError(place, "the second operand has more dimensions than the first");
    return walk;
}

class Broadcast : public StandaloneOperation {
  public:
    Broadcast(Operator op, Walk walk, WeightRef weight) : op_(op), walk_(walk), weight_(std::move(weight)) {}
    std::string describe() const override { return cat(name_of(op_), weight_ ? " " + weight_->name : " broadcast"); }
    std::vector<WeightRef> weights() const override {
        return weight_ ? std::vector{weight_} : std::vector<WeightRef>{};
    }
    ggml_tensor *lower(const StockParts &p) const override {
        ggml_tensor *b = weight_ ? p.weight(weight_) : p.inputs[1];
        return op_ == Operator::add ? ggml_add(p.context, p.inputs[0], b) : ggml_mul(p.context, p.inputs[0], b);
    }
    RowFunction row_function() const override {
        const auto *fixed = weight_ ? reinterpret_cast<const float *>(weight_->tensor.data()) : nullptr;
        return [op = op_, w = walk_, fixed](std::span<const void *const> inputs, float *out) {
            const auto *a = static_cast<const float *>(inputs[0]);
            const auto *b = fixed != nullptr ? fixed : static_cast<const float *>(inputs[1]);
            for (int64_t i = 0; i < w.n[0]; ++i)
                for (int64_t j = 0; j < w.n[1]; ++j) {
                    const float *from = b + i * w.step[0] + j * w.step[1];
                    for (int64_t k = 0; k < w.n[2]; ++k, ++a, ++out)
                        *out = op == Operator::add ? *a + from[k * w.step[2]] : *a * from[k * w.step[2]];
                }
        };
    }

  private:
    Operator op_;
    Walk walk_;
    WeightRef weight_;
};

TraceTensor with_tensor(Operator op, const TraceTensor &a, const TraceTensor &b) {
    if (a.shape().lead != b.shape().lead) throw ShapeError(name_of(op), "the operands have different rows");
    if (a.shape().rest.size() != b.shape().rest.size())
        throw ShapeError(name_of(op), "the operands have different numbers of dimensions");
    const Walk walk = walk_of(name_of(op), a.shape().rest, b.shape().rest);
    return record_standalone(std::make_shared<Broadcast>(op, walk, nullptr), {a, b}, a.shape());
}

TraceTensor with_weight(Operator op, const TraceTensor &x, WeightRef weight) {
    if (weight->tensor.dtype() != DType::f32)
        throw ShapeError(name_of(op), cat(weight->name, " is ", name(weight->tensor.dtype()), ": expected f32"));
    const Walk walk = walk_of(name_of(op), x.shape().rest, weight->tensor.shape());
    return record_standalone(std::make_shared<Broadcast>(op, walk, std::move(weight)), {x}, x.shape());
}

} // namespace

TraceTensor add_broadcast(const TraceTensor &a, const TraceTensor &b) { return with_tensor(Operator::add, a, b); }
TraceTensor multiply_broadcast(const TraceTensor &a, const TraceTensor &b) {
    return with_tensor(Operator::multiply, a, b);
}
TraceTensor add_weight(const TraceTensor &x, WeightRef weight) {
    return with_weight(Operator::add, x, std::move(weight));
}
TraceTensor multiply_weight(const TraceTensor &x, WeightRef weight) {
    return with_weight(Operator::multiply, x, std::move(weight));
}

} // namespace quire
