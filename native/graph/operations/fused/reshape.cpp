#include "graph/operations/fused/reshape.h"

#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

TraceTensor reshaped(const TraceTensor &x, std::vector<int64_t> rest) {
    return x.tracer->record(std::make_shared<Reshape>(), {x}, {x.shape().lead, std::move(rest)});
}

} // namespace

TraceTensor heads(const TraceTensor &x, int n_head) {
    expect_rank("heads", "x", x, 1);
    const int64_t n = x.shape().rest[0];
    if (n_head < 1 || n % n_head != 0) throw ShapeError("heads", cat(n, " is not divisible by n_head ", n_head));
    return reshaped(x, {n_head, n / n_head});
}

TraceTensor merge_heads(const TraceTensor &x) {
    expect_rank("merge_heads", "x", x, 2);
    return reshaped(x, {row_size(x.shape())});
}

TraceTensor reshape(const TraceTensor &x, std::vector<int64_t> rest) {
    TraceShape shape{x.shape().lead, rest};
    if (x.shape().rest.empty() || rest.empty() || rest.size() > 3 || row_size(shape) != row_size(x.shape()))
        throw ShapeError("reshape", "the row changes its size, or has more than 3 dimensions");
    return reshaped(x, std::move(rest));
}

ggml_tensor *Reshape::lower(const StockParts &p) const {
    const std::vector<int64_t> &rest = p.shape.rest;
    ggml_tensor *x = p.inputs[0];
    if (!ggml_is_contiguous(x) && rest.size() == 2) // rows of a merged product
        return ggml_view_3d(p.context, x, rest[1], rest[0], p.lead, static_cast<size_t>(rest[1]) * sizeof(float),
                            x->nb[1], 0);
    if (rest.size() == 3) return ggml_reshape_4d(p.context, p.inputs[0], rest[2], rest[1], rest[0], p.lead);
    return rest.size() == 2 ? ggml_reshape_3d(p.context, p.inputs[0], rest[1], rest[0], p.lead)
                            : ggml_reshape_2d(p.context, p.inputs[0], rest[0], p.lead);
}

void Reshape::add_nodes(CpuLowering &lowering, int i) const {
    lowering.set_value(i, lowering.value(lowering.input(i)));
}

} // namespace quire
