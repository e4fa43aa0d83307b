#include "graph/operations/standalone_operation.h"

#include "graph/cpu/cpu_lowering.h"

namespace quire {

std::unique_ptr<CpuNode> StandaloneOperation::cpu_node(const CpuNodeParts &) const { return nullptr; }

void StandaloneOperation::add_nodes(CpuLowering &lowering, int i) const {
    std::vector<CpuValue *> inputs;
    std::vector<StockNode::Input> shaped;
    for (int from : lowering.operation(i).inputs) {
        inputs.push_back(lowering.rest(from).empty() ? lowering.id_value(from) : lowering.value(from));
        shaped.push_back({inputs.back(), lowering.operation(from).shape});
    }
    CpuValue *out = lowering.new_value(i);
    std::vector<CpuValue *> used = inputs;
    used.push_back(out);
    if (auto node = cpu_node({inputs, out, lowering.store()})) return lowering.program().add(std::move(node), used);
    if (RowFunction function = row_function())
        return lowering.program().add(std::make_unique<RowNode>(std::move(function), inputs, out), used);
    lowering.program().note_stock_operation(name());
    lowering.program().add(std::make_unique<StockNode>(*this, std::move(shaped), out, lowering.operation(i).shape),
                           used);
}

TraceTensor record_standalone(std::shared_ptr<const StandaloneOperation> operation,
                              const std::vector<TraceTensor> &inputs, TraceShape shape) {
    return inputs.front().tracer->record(std::move(operation), inputs, std::move(shape));
}

} // namespace quire
