#include "graph/cpu/standalone_nodes.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>

#include <array>
#include <cstring>

#include "core/error.h"
#include "graph/stock/lowering.h"
#include "graph/stock/stock_parts.h"

namespace quire {

namespace {

const std::vector<int32_t> &ids_of(const StepBatch &batch, int operation) {
    switch (operation) {
    case tokens_operation: return batch.tokens;
    case positions_operation: return batch.positions;
    case logit_rows_operation: return batch.logit_rows;
    case token_types_operation: return batch.token_types;
    default: throw InternalError("graph", "the ids of a node are not a value of the step");
    }
}

} // namespace

void IdsNode::run(const CpuRun &run) {
    const std::vector<int32_t> &ids = ids_of(run.batch, operation_);
    std::memcpy(out_->data, ids.data(), ids.size() * sizeof(int32_t));
}

void RowNode::run(const CpuRun &run) {
    constexpr int64_t grain_bytes = 16 << 10;
    const int grain = static_cast<int>(std::max<int64_t>(1, grain_bytes / std::max<int64_t>(1, out_->row_bytes)));
    constexpr size_t most_inputs = 8;
    run.team.for_each(run.n(out_->lead), grain, [&](int row) {
        std::array<const void *, most_inputs> rows;
        for (size_t i = 0; i < inputs_.size(); ++i) rows[i] = inputs_[i]->data + row * inputs_[i]->row_bytes;
        function_({rows.data(), inputs_.size()}, out_->floats() + row * out_->row_bytes / int64_t{sizeof(float)});
    });
}

struct StockNode::Memory {
    struct Free {
        void operator()(ggml_gallocr *allocator) const { ggml_gallocr_free(allocator); }
    };
    Backend backend{find_device("CPU"), 1};
    std::unique_ptr<ggml_gallocr, Free> allocator{
        ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend.handle()))};
    std::vector<uint8_t> records;
};

StockNode::StockNode(const OperationKind &operation, std::vector<Input> inputs, CpuValue *out, TraceShape shape)
    : operation_(operation), inputs_(std::move(inputs)), out_(out), shape_(std::move(shape)),
      memory_(std::make_unique<Memory>()) {}

StockNode::~StockNode() = default;

namespace {

// A value of the program as ggml sees it.
ggml_tensor *seen(ggml_context *context, const TraceShape &shape, int64_t lead, void *data) {
    const size_t n = shape.rest.size();
    const std::array<int64_t, 4> ne = stock_dims(shape, lead);
    const ggml_type type = n == 0 ? GGML_TYPE_I32 : GGML_TYPE_F32;
    ggml_tensor *tensor = ggml_new_tensor(context, type, static_cast<int>(n) + 1, ne.data());
    tensor->data = data;
    return tensor;
}

} // namespace

void StockNode::run(const CpuRun &run) {
    const int n_rows = run.n(out_->lead);
    if (n_rows == 0) return;
    const size_t n_tensors = operation_.n_tensors() + inputs_.size() + 2;
    memory_->records.resize(ggml_tensor_overhead() * n_tensors + ggml_graph_overhead_custom(n_tensors, false));
    std::unique_ptr<ggml_context, FreeContext> context(
        ggml_init({memory_->records.size(), memory_->records.data(), true}));
    StockParts parts{context.get(), {}, shape_, n_rows};
    for (const Input &input : inputs_)
        parts.inputs.push_back(seen(context.get(), input.shape, run.n(input.shape.lead), input.value->data));
    ggml_tensor *result = operation_.lower(parts);
    ggml_cgraph *graph = ggml_new_graph_custom(context.get(), n_tensors, false);
    ggml_build_forward_expand(graph, result);
    if (!ggml_gallocr_alloc_graph(memory_->allocator.get(), graph))
        throw CapacityError("graph", "out of memory: values of an operation");
    if (ggml_backend_graph_compute(memory_->backend.handle(), graph) != GGML_STATUS_SUCCESS)
        throw InternalError("graph", cat("cannot compute ", operation_.describe()));
    std::memcpy(out_->data, result->data, static_cast<size_t>(out_->row_bytes) * static_cast<size_t>(n_rows));
}

} // namespace quire
