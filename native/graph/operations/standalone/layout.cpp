#include <cstring>

#include "core/error.h"
#include "graph/operations/standalone_operation.h"
#include "graph/trace/standalone_operations.h"

namespace quire {
namespace {

int64_t product(const std::vector<int64_t> &dims, size_t begin, size_t end) {
    int64_t n = 1;
    for (size_t i = begin; i < end; ++i) n *= dims[i];
    return n;
}

// Index in `rest` of an axis that counts from the last.
size_t place_of(const char *what, const TraceShape &shape, int axis) {
    if (axis < 0 || static_cast<size_t>(axis) >= shape.rest.size())
        throw ShapeError(what,
                         cat("axis is ", axis, ": expected 0 to ", shape.rest.size() - 1, ", counted from the last"));
    return shape.rest.size() - 1 - static_cast<size_t>(axis);
}

class Slice : public StandaloneOperation {
  public:
    // [outer, n, inner] becomes [outer, end - begin, inner].
    Slice(int axis, int64_t outer, int64_t n, int64_t inner, int64_t begin, int64_t end)
        : axis_(axis), outer_(outer), n_(n), inner_(inner), begin_(begin), end_(end) {}
    std::string describe() const override { return cat("slice ", begin_, ":", end_, " of axis ", axis_); }
    ggml_tensor *lower(const StockParts &p) const override {
        ggml_tensor *x = p.inputs[0];
        int64_t ne[4] = {x->ne[0], x->ne[1], x->ne[2], x->ne[3]};
        ne[axis_] = end_ - begin_;
        const size_t offset = static_cast<size_t>(begin_) * x->nb[axis_];
        return ggml_cont(p.context,
                         ggml_view_4d(p.context, x, ne[0], ne[1], ne[2], ne[3], x->nb[1], x->nb[2], x->nb[3], offset));
    }
    RowFunction row_function() const override {
        return [*this](std::span<const void *const> inputs, float *out) {
            const auto *x = static_cast<const float *>(inputs[0]) + begin_ * inner_;
            const int64_t some = (end_ - begin_) * inner_;
            for (int64_t i = 0; i < outer_; ++i, x += n_ * inner_, out += some)
                std::memcpy(out, x, static_cast<size_t>(some) * sizeof(float));
        };
    }

  private:
    int axis_;
    int64_t outer_, n_, inner_, begin_, end_;
};

class Concat : public StandaloneOperation {
  public:
    Concat(int axis, int64_t outer, int64_t a, int64_t b) : axis_(axis), outer_(outer), a_(a), b_(b) {}
    std::string describe() const override { return cat("concat along axis ", axis_); }
    ggml_tensor *lower(const StockParts &p) const override {
        return ggml_concat(p.context, p.inputs[0], p.inputs[1], axis_);
    }
    RowFunction row_function() const override {
        return [*this](std::span<const void *const> inputs, float *out) {
            const auto *a = static_cast<const float *>(inputs[0]), *b = static_cast<const float *>(inputs[1]);
            for (int64_t i = 0; i < outer_; ++i, a += a_, b += b_, out += a_ + b_) {
                std::memcpy(out, a, static_cast<size_t>(a_) * sizeof(float));
                std::memcpy(out + a_, b, static_cast<size_t>(b_) * sizeof(float));
            }
        };
    }

  private:
    int axis_;
    int64_t outer_, a_, b_; // elements of either operand for each outer one
};

class RepeatHeads : public StandaloneOperation {
  public:
    RepeatHeads(int64_t n_head, int64_t head_dim, int n) : n_head_(n_head), head_dim_(head_dim), n_(n) {}
    std::string describe() const override { return cat("repeat_heads ", n_); }
    ggml_tensor *lower(const StockParts &p) const override {
        ggml_tensor *x = ggml_reshape_4d(p.context, p.inputs[0], head_dim_, 1, n_head_, p.lead);
        x = ggml_repeat_4d(p.context, x, head_dim_, n_, n_head_, p.lead);
        return ggml_reshape_3d(p.context, x, head_dim_, n_ * n_head_, p.lead);
    }
    RowFunction row_function() const override {
        return [*this](std::span<const void *const> inputs, float *out) {
            const auto *x = static_cast<const float *>(inputs[0]);
            for (int64_t head = 0; head < n_head_; ++head, x += head_dim_)
                for (int i = 0; i < n_; ++i, out += head_dim_)
                    std::memcpy(out, x, static_cast<size_t>(head_dim_) * sizeof(float));
        };
    }

  private:
    int64_t n_head_, head_dim_;
    int n_;
};

} // namespace

TraceTensor slice(const TraceTensor &x, int axis, int64_t begin, int64_t end) {
    const size_t at = place_of("slice", x.shape(), axis);
    TraceShape shape = x.shape();
    const int64_t n = shape.rest[at];
    if (begin < 0 || begin >= end || end > n)
        throw ShapeError("slice", cat("the part ", begin, ":", end, " is out of range: expected one in 0:", n));
    const int64_t outer = product(shape.rest, 0, at), inner = product(shape.rest, at + 1, shape.rest.size());
    shape.rest[at] = end - begin;
    return record_standalone(std::make_shared<Slice>(axis, outer, n, inner, begin, end), {x}, shape);
}

TraceTensor concat(const TraceTensor &a, const TraceTensor &b, int axis) {
    const size_t at = place_of("concat", a.shape(), axis);
    TraceShape shape = a.shape(), other = b.shape();
    if (shape.rest.size() != other.rest.size())
        throw ShapeError("concat", "the operands have different numbers of dimensions");
    const int64_t inner = product(shape.rest, at + 1, shape.rest.size()), outer = product(shape.rest, 0, at);
    const int64_t in_a = shape.rest[at] * inner, in_b = other.rest[at] * inner, sum = shape.rest[at] + other.rest[at];
    shape.rest[at] = other.rest[at] = sum;
    if (!(shape == other)) throw ShapeError("concat", "dimensions other than the axis differ");
    return record_standalone(std::make_shared<Concat>(axis, outer, in_a, in_b), {a, b}, shape);
}

TraceTensor repeat_heads(const TraceTensor &x, int n) {
    if (x.shape().rest.size() != 2 || n < 1)
        throw ShapeError("repeat_heads", cat("expected x [rows, n_head, head_dim] and a positive n, got n ", n));
    TraceShape shape = x.shape();
    auto operation = std::make_shared<RepeatHeads>(shape.rest[0], shape.rest[1], n);
    shape.rest[0] *= n;
    return record_standalone(std::move(operation), {x}, shape);
}

} // namespace quire
