#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "graph/operations/standalone_operation.h"
#include "graph/trace/shared_operations.h"

namespace quire {
namespace {

// As many rows at a time as a slot of the group holds.
class AllReduceNode : public CpuNode {
  public:
    AllReduceNode(std::shared_ptr<RankGroup> group, const CpuValue *x, CpuValue *out)
        : group_(std::move(group)), x_(x), out_(out) {}
    void run(const CpuRun &run) override {
        const int64_t n = out_->n_floats();
        const int n_rows = run.n(out_->lead), at_once = static_cast<int>(RankGroup::slot_floats / n);
        for (int first = 0; first < n_rows; first += at_once) add(run, first, std::min(at_once, n_rows - first));
    }

  private:
    void add(const CpuRun &run, int first, int n_rows) {
        const int64_t n = out_->n_floats();
        const int grain = rows_together(n);
        float *mine = group_->begin_sum();
        run.team.for_each(n_rows, grain, [&](int row) {
            std::memcpy(mine + row * n, x_->floats() + (first + row) * n, static_cast<size_t>(out_->row_bytes));
        });
        group_->meet();
        const RowKernels &kernels = run.kernels.rows();
        run.team.for_each(n_rows, grain, [&](int row) {
            float *out = out_->floats() + (first + row) * n;
            std::memcpy(out, group_->part_of_sum(0) + row * n, static_cast<size_t>(out_->row_bytes));
            for (int part = 1; part < group_->n_split(); ++part)
                kernels.add_scaled(group_->part_of_sum(part) + row * n, 1.0F, out, n);
        });
    }

    std::shared_ptr<RankGroup> group_;
    const CpuValue *x_;
    CpuValue *out_;
};

class AllReduce : public StandaloneOperation {
  public:
    explicit AllReduce(std::shared_ptr<RankGroup> group) : group_(std::move(group)) {}
    std::string describe() const override { return cat("all_reduce over ", group_->n_split()); }
    ggml_tensor *lower(const StockParts &) const override {
        throw UnsupportedError("all_reduce", "a model that is split over processes needs Quire's own kernels");
    }
    std::unique_ptr<CpuNode> cpu_node(const CpuNodeParts &parts) const override {
        return std::make_unique<AllReduceNode>(group_, parts.inputs[0], parts.out);
    }

  private:
    std::shared_ptr<RankGroup> group_;
};

} // namespace

TraceTensor all_reduce(const TraceTensor &x, std::shared_ptr<RankGroup> group) {
    if (x.shape().rest.size() != 1 || x.shape().rest[0] > static_cast<int64_t>(RankGroup::slot_floats))
        throw ShapeError("all_reduce",
                         cat("x is ", shape_text(x.shape()), ": expected [rows, n], n up to ", RankGroup::slot_floats));
    return record_standalone(std::make_shared<AllReduce>(std::move(group)), {x}, x.shape());
}

} // namespace quire
