// Values that another piece of the trace has made (graph/trace/boundary.h).
#include <array>
#include <cstring>

#include "graph/cpu/cpu_lowering.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/boundary.h"

namespace quire {
namespace {

class CarriedNode : public CpuNode {
  public:
    CarriedNode(const Boundary &boundary, CpuValue *out) : boundary_(boundary), out_(out) {}
    void run(const CpuRun &run) override {
        const int64_t n = out_->n_floats();
        run.team.for_each(run.n(out_->lead), rows_together(n), [&](int row) {
            std::memcpy(out_->floats() + row * n, boundary_.host + row * n, static_cast<size_t>(out_->row_bytes));
        });
    }

  private:
    const Boundary &boundary_; // the operation's
    CpuValue *out_;
};

class Carried : public OperationKind {
  public:
    Carried(std::shared_ptr<const Boundary> boundary, bool from_device)
        : boundary_(std::move(boundary)), from_device_(from_device) {}
    std::string describe() const override { return "carried"; }
    ggml_tensor *lower(const StockParts &p) const override {
        if (from_device_) return device_rows(p.context, *boundary_, p.lead);
        const std::array<int64_t, 4> ne = stock_dims(boundary_->shape, p.lead);
        ggml_tensor *input = p.graph->new_input(GGML_TYPE_F32, {ne[0], ne[1], ne[2], ne[3]}, "carried");
        p.graph->out.inputs.carried.emplace_back(input, boundary_.get());
        return input;
    }
    void add_nodes(CpuLowering &lowering, int i) const override {
        CpuValue *out = lowering.new_value(i);
        lowering.program().add(std::make_unique<CarriedNode>(*boundary_, out), {out});
    }

  private:
    std::shared_ptr<const Boundary> boundary_;
    bool from_device_;
};

} // namespace

std::shared_ptr<const OperationKind> carried(std::shared_ptr<const Boundary> boundary, bool from_device) {
    return std::make_shared<Carried>(std::move(boundary), from_device);
}

} // namespace quire
