#include "graph/cpu/row_norm.h"

#include "kernels/rows/row_kernels.h"

namespace quire {

void NormNode::run(const CpuRun &run) {
    const int64_t n = x_->n_floats();
    run.team.for_each(run.n(x_->lead), rows_together(n), [&](int row) {
        for (int64_t i = row * n; i < (row + 1) * n; i += norm_.n)
            run.kernels.rows().rms_norm(x_->floats() + i, norm_.weight, norm_.eps, out_->floats() + i, norm_.n);
    });
}

} // namespace quire
