#include "graph/trace/shape_checks.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/error.h"

namespace quire {

std::string shape_text(const TraceShape &shape) {
    std::string text = shape.lead == Lead::tokens ? "[tokens" : "[rows";
    for (int64_t dim : shape.rest) text += ", " + std::to_string(dim);
    return text + "]";
}

int64_t row_size(const TraceShape &shape) {
    int64_t n = 1;
    for (int64_t dim : shape.rest) n *= dim;
    return n;
}

void expect_rank(const char *place, const char *what, const TraceTensor &x, size_t rest) {
    if (x.shape().rest.size() != rest)
        throw ShapeError(place, cat(what, " is ", shape_text(x.shape()), ": expected ", rest + 1, " dimensions"));
}

void expect_tokens(const char *place, const char *what, const TraceTensor &x) {
    if (x.shape().lead != Lead::tokens)
        throw ShapeError(place, cat(what, " is ", shape_text(x.shape()), ": expected a row for each token"));
}

void expect_numbers(const char *place, const TraceTensor &x) {
    if (x.shape().rest.empty())
        throw ShapeError(place, cat("x is ", shape_text(x.shape()), ": expected numbers in each row"));
}

void expect_equal(const char *place, const TraceTensor &a, const TraceTensor &b) {
    if (!(a.shape() == b.shape()))
        throw ShapeError(place, cat("the shapes ", shape_text(a.shape()), " and ", shape_text(b.shape()), " differ"));
}

void expect_positive(const char *place, const char *what, double value) {
    if (!(value > 0) || !std::isfinite(value))
        throw ShapeError(place, cat(what, " is ", value, ": expected a value above 0"));
}

void expect_not_negative(const char *place, const char *what, double value) {
    if (!(value >= 0) || !std::isfinite(value))
        throw ShapeError(place, cat(what, " is ", value, ": expected 0 or more"));
}

void expect_weight(const char *place, const WeightRef &weight, const Shape &shape) {
    if (weight->tensor.shape() != shape)
        throw ShapeError(place,
                         cat(weight->name, " is ", to_string(weight->tensor.shape()), ": expected ", to_string(shape)));
}

void expect_f32(const char *place, const WeightRef &weight, const Shape &shape) {
    if (!weight) return;
    const Tensor &tensor = weight->tensor;
    if (tensor.shape() != shape)
        throw ShapeError(place, cat(weight->name, " is ", name(tensor.dtype()), " ", to_string(tensor.shape()),
                                    ": expected f32 ", to_string(shape)));
    if (tensor.dtype() != DType::f32)
        throw ShapeError(place, cat(weight->name, " is ", name(tensor.dtype()), ": expected f32"));
}

const float *weight_floats(const WeightRef &weight) {
    return weight ? reinterpret_cast<const float *>(weight->tensor.data()) : nullptr;
}

std::vector<WeightRef> without_null(std::initializer_list<WeightRef> weights) {
    std::vector<WeightRef> found;
    std::copy_if(weights.begin(), weights.end(), std::back_inserter(found), [](const auto &w) { return w != nullptr; });
    return found;
}

} // namespace quire
