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
        throw ShapeError(place, cat(what, " must have ", rest + 1, " dimensions but is ", shape_text(x.shape())));
}

void expect_tokens(const char *place, const char *what, const TraceTensor &x) {
    if (x.shape().lead != Lead::tokens)
        throw ShapeError(place, cat(what, " must be one for each token but is ", shape_text(x.shape())));
}

void expect_numbers(const char *place, const TraceTensor &x) {
    if (x.shape().rest.empty())
        throw ShapeError(place, cat("x must be numbers of each row but is ", shape_text(x.shape())));
}

void expect_equal(const char *place, const TraceTensor &a, const TraceTensor &b) {
    if (!(a.shape() == b.shape()))
        throw ShapeError(place,
                         cat("shapes must be equal but are ", shape_text(a.shape()), " and ", shape_text(b.shape())));
}

void expect_positive(const char *place, const char *what, double value) {
    if (!(value > 0) || !std::isfinite(value)) throw ShapeError(place, cat(what, " must be above 0 but is ", value));
}

void expect_not_negative(const char *place, const char *what, double value) {
    if (!(value >= 0) || !std::isfinite(value))
        throw ShapeError(place, cat(what, " must be 0 or above but is ", value));
}

void expect_weight(const char *place, const WeightRef &weight, const Shape &shape) {
    if (weight->tensor.shape() != shape)
        throw ShapeError(
            place, cat(weight->name, " must be ", to_string(shape), " but is ", to_string(weight->tensor.shape())));
}

void expect_f32(const char *place, const WeightRef &weight, const Shape &shape) {
    if (!weight) return;
    const Tensor &tensor = weight->tensor;
    if (tensor.shape() != shape)
        throw ShapeError(place, cat(weight->name, " must be f32 ", to_string(shape), " but is ", name(tensor.dtype()),
                                    " ", to_string(tensor.shape())));
    if (tensor.dtype() != DType::f32)
        throw ShapeError(place, cat(weight->name, " must be f32 but is ", name(tensor.dtype())));
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
