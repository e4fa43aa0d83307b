#include "graph/operations/fused/heads.h"

#include <cstring>

#include "graph/cpu/cpu_lowering.h"
#include "graph/operations/fused/linear.h"
#include "graph/operations/fused/reshape.h"
#include "graph/operations/fused/rms_norm.h"
#include "graph/operations/fused/rope.h"

namespace quire {

void HeadSteps::apply(const RowKernels &kernels, int64_t row) const {
    const int64_t n = int64_t{n_head} * head_dim;
    for (float *head = x->floats() + row * n, *end = head + n; head < end; head += head_dim) {
        if (norm) kernels.rms_norm(head, norm->weight, norm->eps, head, head_dim);
        if (!rotation) continue;
        const float *cosines = rotation->table->floats() + row * 2 * rotation->n_dims;
        const bool half = rotation->layout == RopeLayout::half;
        (half ? kernels.rotate_half : kernels.rotate_interleaved)(head, cosines, cosines + rotation->n_dims,
                                                                  rotation->n_dims);
    }
}

std::vector<CpuValue *> HeadSteps::used() const {
    if (rotation) return {x, rotation->table};
    return {x};
}

void HeadsNode::run(const CpuRun &run) {
    const int64_t n = x_->n_floats();
    run.team.for_each(run.n(x_->lead), rows_together(2 * n), [&](int row) {
        if (x_ != steps_.x)
            std::memcpy(steps_.x->floats() + row * n, x_->floats() + row * n, static_cast<size_t>(x_->row_bytes));
        steps_.apply(run.kernels.rows(), row);
    });
}

void mark_head_steps(CpuLowering &lowering, int attend, size_t which) {
    int next = attend, i = lowering.input(attend, which);
    std::vector<int> steps;
    auto single = [&](int step) { return lowering.only_user(step) == next; };
    auto take = [&](int step) {
        steps.push_back(step);
        next = step;
        i = lowering.input(step);
    };
    if (lowering.as<Rope>(i) != nullptr && single(i)) take(i);
    if (lowering.as<RmsNorm>(i) != nullptr && single(i)) take(i);
    while (lowering.as<Reshape>(i) != nullptr && single(i)) {
        next = i;
        i = lowering.input(i);
    }
    if (lowering.as<Linear>(i) == nullptr || !single(i)) return;
    for (int step : steps) lowering.mark_head_step(step);
}

HeadSteps head_steps(CpuLowering &lowering, int i) {
    const std::vector<int64_t> &rest = lowering.rest(i);
    HeadSteps steps{lowering.value(i), static_cast<int>(rest[0]), static_cast<int>(rest[1]), std::nullopt,
                    std::nullopt};
    if (const auto *rope = lowering.as<Rope>(i); rope != nullptr && lowering.is_head_step(i)) {
        steps.rotation = rope->rotation(lowering);
        i = lowering.input(i);
    }
    if (const auto *norm = lowering.as<RmsNorm>(i); norm != nullptr && lowering.is_head_step(i))
        steps.norm = norm->over(rest[1]);
    return steps;
}

} // namespace quire
