// Checks of operations when they are recorded, and access to their weights.
#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "graph/trace/tracer.h"

namespace quire {

std::string shape_text(const TraceShape &shape);
int64_t row_size(const TraceShape &shape); // numbers of a row

// All throw ShapeError naming `place`.
void expect_rank(const char *place, const char *what, const TraceTensor &x, size_t rest);
void expect_tokens(const char *place, const char *what, const TraceTensor &x); // and not logit rows
void expect_numbers(const char *place, const TraceTensor &x); // and not ids
void expect_equal(const char *place, const TraceTensor &a, const TraceTensor &b);
void expect_positive(const char *place, const char *what, double value);
void expect_not_negative(const char *place, const char *what, double value);
void expect_weight(const char *place, const WeightRef &weight, const Shape &shape);
// The weight is null or f32 of that shape: elementwise operations want that.
void expect_f32(const char *place, const WeightRef &weight, const Shape &shape);

// The data of an f32 weight; null for null.
const float *weight_floats(const WeightRef &weight);
std::vector<WeightRef> without_null(std::initializer_list<WeightRef> weights);

} // namespace quire
