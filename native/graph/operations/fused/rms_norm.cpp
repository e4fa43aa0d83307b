#include "graph/operations/fused/rms_norm.h"

#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/operations/fused/linear.h"
#include "graph/stock/stock_parts.h"

namespace quire {

TraceTensor rms_norm(const TraceTensor &x, WeightRef weight, float eps) {
    if (x.shape().rest.empty()) throw ShapeError("rms_norm", "x has 1 dimension: expected 2 or more");
    expect_positive("rms_norm", "eps", eps);
    expect_f32("rms_norm", weight, {x.shape().rest.back()});
    return x.tracer->record(std::make_shared<RmsNorm>(std::move(weight), eps), {x}, x.shape());
}

std::string RmsNorm::describe() const { return "rms_norm" + (weight_ ? " " + weight_->name : std::string()); }

ggml_tensor *RmsNorm::lower(const StockParts &p) const {
    ggml_tensor *y = ggml_rms_norm(p.context, p.inputs[0], eps_);
    return weight_ ? ggml_mul(p.context, y, p.weight(weight_)) : y;
}

RowNorm RmsNorm::over(int64_t n) const { return {weight_floats(weight_), eps_, n}; }

void RmsNorm::add_nodes(CpuLowering &lowering, int i) const {
    const int input = lowering.input(i);
    const RowNorm norm = over(lowering.rest(i).back());
    bool only_products = lowering.rest(i).size() == 1;
    for (int user : lowering.users(i))
        only_products = only_products && user >= 0 && lowering.as<Linear>(user) != nullptr;
    if (only_products) lowering.left_norm(i) = norm;
    if (only_products || lowering.is_head_step(i)) return lowering.set_value(i, lowering.value(input));
    CpuValue *x = lowering.value(input), *out = lowering.new_value(i);
    lowering.program().add(std::make_unique<NormNode>(x, norm, out), {x, out});
}

} // namespace quire
