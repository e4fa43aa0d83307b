#include "graph/operations/fused/paged_rows.h"

#include <algorithm>

#include "core/error.h"
#include "graph/operations/fused/attention_nodes.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/state_streams.h"

namespace quire {
namespace {

class WriteKernel : public PagedKernel {
  public:
    WriteKernel(int group, const RowPool &pool) : group_(group), pool_(pool) {}
    void run(const PagedStep &step, int row, int) const override {
        const PagedStep::Place place = step.place(group_, row);
        if ((place.position + 1) % pool_.every == 0) pool_.write(place.slot, step.inputs[0] + int64_t{row} * pool_.dim);
    }

  private:
    int group_;
    RowPool pool_;
};

class PagedNode : public CpuNode {
  public:
    PagedNode(std::shared_ptr<const PagedKernel> kernel, std::vector<CpuValue *> inputs, CpuValue *out)
        : kernel_(std::move(kernel)), inputs_(std::move(inputs)), out_(out) {}
    void run(const CpuRun &run) override {
        std::vector<const float *> inputs;
        for (const CpuValue *input : inputs_) inputs.push_back(input->floats());
        const PagedStep step{run.groups, inputs, out_ == nullptr ? nullptr : out_->floats()};
        const int n_parts = kernel_->n_parts();
        run.team.for_each(run.n(Lead::tokens) * n_parts, out_ == nullptr ? 8 : 1,
                          [&](int item) { kernel_->run(step, item / n_parts, item % n_parts); });
    }

  private:
    std::shared_ptr<const PagedKernel> kernel_;
    std::vector<CpuValue *> inputs_;
    CpuValue *out_; // null where nothing but the cache is written
};

// A node of a graph refers to this, which the graph keeps.
struct GraphContext {
    std::shared_ptr<const PagedKernel> kernel;
    std::shared_ptr<const StepBatch *> batch;
    size_t n_inputs;
};

void compute_paged(ggml_tensor *out, int thread, int n_threads, void *data) {
    const auto &context = *static_cast<const GraphContext *>(data);
    const StepBatch &batch = **context.batch;
    const int n_rows = static_cast<int>(batch.tokens.size()), n_parts = context.kernel->n_parts();
    std::vector<AttentionBatch> groups;
    for (const GroupBatch &group : batch.groups)
        groups.push_back({n_rows, static_cast<int>(batch.n_kv.size()), batch.row_begin.data(),
                          group.n_kv_of(batch.n_kv).data(), group.table_begin.data(), group.tables.data(),
                          group.slots.data()});
    std::vector<const float *> inputs;
    for (size_t i = 0; i < context.n_inputs; ++i) inputs.push_back(static_cast<const float *>(out->src[i]->data));
    auto *target = static_cast<float *>(out->data);
    const PagedStep step{groups, inputs, target};
    for (int item = thread; item < n_rows * n_parts; item += n_threads)
        context.kernel->run(step, item / n_parts, item % n_parts);
    // The other rows are padding, and must be numbers, too.
    if (thread == 0) std::fill(target + n_rows * out->ne[0], target + ggml_nelements(out), 0.0F);
}

// `after`: what must be computed before.
ggml_tensor *graph_node(const StockParts &p, const std::shared_ptr<const PagedKernel> &kernel, int64_t n_out,
                        const std::vector<ggml_tensor *> &inputs, const std::vector<ggml_tensor *> &after) {
    std::vector<ggml_tensor *> sources;
    for (ggml_tensor *input : inputs) sources.push_back(stock_dense(p.context, input));
    auto context = std::make_shared<GraphContext>(GraphContext{kernel, p.graph->out.batch, sources.size()});
    sources.insert(sources.end(), after.begin(), after.end());
    ggml_tensor *made =
        ggml_custom_4d(p.context, GGML_TYPE_F32, n_out, p.lead, 1, 1, sources.data(), static_cast<int>(sources.size()),
                       compute_paged, GGML_N_TASKS_MAX, context.get());
    p.graph->out.kept.push_back(std::move(context));
    return made;
}

} // namespace

PagedStep::Place PagedStep::place(int group, int row) const {
    const AttentionBatch &batch = groups[static_cast<size_t>(group)];
    const int32_t *end = batch.row_begin + batch.n_sequences + 1;
    const auto sequence = static_cast<int32_t>(std::upper_bound(batch.row_begin, end, row) - batch.row_begin) - 1;
    return {batch.position(sequence, row - batch.row_begin[sequence]), batch.tables + batch.table_begin[sequence],
            batch.slots[row]};
}

PagedLayer PagedLayer::of(const char *place, const KvStore &store, int layer) {
    const CacheLayout &layout = store.layout();
    if (layout.types().are_coded())
        throw UnsupportedError(place, cat("the cache is ", name(layout.types()),
                                          ": expected f32, f16 or bf16 for models with compressed attention"));
    const CacheRows &kept = layout.layers()[static_cast<size_t>(layer)].rows.value();
    const KvStore::Rows &pools = store.rows(layer);
    return {layout.group_of(layer).value(),
            {pools.k.data(), kv_type(layout.types().k), kept.head_dim, kept.every},
            {kept.v_in_k ? nullptr : pools.v.data(), kv_type(layout.types().v), kept.v_head_dim, kept.every}};
}

void add_paged_nodes(CpuLowering &lowering, int i, const PagedOperation &operation) {
    CpuProgram &program = lowering.program();
    std::vector<CpuValue *> inputs;
    for (size_t at = 0; at < lowering.n_inputs(i); ++at) inputs.push_back(lowering.value(lowering.input(i, at)));
    for (const PagedWrite &write : operation.writes) {
        program.add_written(write.group);
        CpuValue *rows = inputs[write.input];
        program.add(std::make_unique<PagedNode>(std::make_shared<WriteKernel>(write.group, write.pool),
                                                std::vector{rows}, nullptr),
                    {rows});
    }
    CpuValue *out = lowering.new_value(i);
    std::vector<CpuValue *> used = inputs;
    used.push_back(out);
    program.add(std::make_unique<PagedNode>(operation.kernel, inputs, out), used);
}

ggml_tensor *lower_paged(const StockParts &p, const PagedOperation &operation) {
    std::vector<ggml_tensor *> written;
    for (const PagedWrite &write : operation.writes)
        written.push_back(
            graph_node(p, std::make_shared<WriteKernel>(write.group, write.pool), 1, {p.inputs[write.input]}, {}));
    return lower_paged(p, operation.kernel, written);
}

ggml_tensor *lower_paged(const StockParts &p, const std::shared_ptr<const PagedKernel> &kernel,
                         const std::vector<ggml_tensor *> &written) {
    int64_t n = 1;
    for (int64_t dim : p.shape.rest) n *= dim;
    const std::array<int64_t, 4> ne = stock_dims(p.shape, p.lead);
    return ggml_reshape_4d(p.context, graph_node(p, kernel, n, p.inputs, written), ne[0], ne[1], ne[2], ne[3]);
}

} // namespace quire
