// An encoder leaves K and V of the source's rows for the rows of another text, which attend
// (operations/fused/attend.cpp) reads in later steps.
#include "core/error.h"
#include "core/poison.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/operations/fused/attention_nodes.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/stock_attention.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

class WriteNode : public CpuNode {
  public:
    WriteNode(int group, const AttentionShape &shape, const KvStore::Rows &pools, CpuValue *k, CpuValue *v)
        : group_(static_cast<size_t>(group)), shape_(shape), pools_(pools), k_(k), v_(v) {}
    void run(const CpuRun &run) override;

  private:
    size_t group_;
    AttentionShape shape_;
    const KvStore::Rows &pools_;
    CpuValue *k_, *v_;
};

void WriteNode::run(const CpuRun &run) {
    const AttentionBatch &attention = run.groups[group_];
    const int64_t k_floats = k_->n_floats(), v_floats = v_->n_floats();
    constexpr int each = 16;
    run.team.for_each((attention.n_rows + each - 1) / each, rows_together(each * (k_floats + v_floats)), [&](int item) {
        const int first = item * each, n = std::min(each, attention.n_rows - first);
        const KvRows rows{n, attention.slots + first, k_->floats() + first * k_floats, v_->floats() + first * v_floats};
        kv_write_rows(run.kernels, shape_, rows, pools_.k.data(), pools_.v.data());
    });
    if (poisons()) kv_poison_rest(shape_, attention, pools_.k.data(), pools_.v.data());
}

// Inputs: k, v.
class WriteSource : public OperationKind {
  public:
    explicit WriteSource(int layer) : layer_(layer) {}
    std::string describe() const override { return cat("write_source layer ", layer_); }
    size_t n_tensors() const override { return 16; }
    std::vector<int> cached_layers() const override { return {layer_}; }
    ggml_tensor *lower(const StockParts &parts) const override;
    void add_nodes(CpuLowering &lowering, int i) const override;

  private:
    int layer_;
};

ggml_tensor *WriteSource::lower(const StockParts &p) const {
    StockGraph &graph = *p.graph;
    const int group = graph.store.layout().group_of(layer_).value();
    const KvStore::Rows &pools = graph.store.rows(layer_);
    ggml_tensor *k = stock_stored(graph, group, p.inputs[0], pools.k);
    graph.written[layer_] = {k, stock_stored(graph, group, p.inputs[1], pools.v)};
    return k;
}

void WriteSource::add_nodes(CpuLowering &lowering, int i) const {
    const CacheRows &kept = lowering.trace().cache[static_cast<size_t>(layer_)].rows.value();
    const CacheLayout &layout = lowering.store().layout();
    const int group = layout.group_of(layer_).value();
    const CacheTypes types = layout.types();
    const AttentionShape shape{kept.n_kv_head,   kept.n_kv_head,   kept.head_dim, kept.v_head_dim,
                               kv_type(types.k), kv_type(types.v), 1.0F};
    lowering.program().add_written(group);
    CpuValue *k = lowering.value(lowering.input(i, 0)), *v = lowering.value(lowering.input(i, 1));
    lowering.program().add(std::make_unique<WriteNode>(group, shape, lowering.store().rows(layer_), k, v), {k, v});
}

} // namespace

void write_source(int layer, const TraceTensor &k, const TraceTensor &v) {
    for (const auto &[name, x] : {std::pair("k", &k), std::pair("v", &v)}) {
        expect_rank("write_source", name, *x, 2);
        expect_tokens("write_source", name, *x);
    }
    const CacheRows &kept = k.tracer->rows_of(layer);
    if (!kept.of_source) throw ShapeError("write_source", cat("layer ", layer, " does not keep rows of a source"));
    const std::vector<int64_t> wanted_k{kept.n_kv_head, kept.head_dim}, wanted_v{kept.n_kv_head, kept.v_head_dim};
    if (k.shape().rest != wanted_k || v.shape().rest != wanted_v)
        throw ShapeError("write_source", cat("k and v ", shape_text(k.shape()), ", ", shape_text(v.shape()),
                                             " do not fit the cache of layer ", layer, ": ", kept.n_kv_head,
                                             " heads of ", kept.head_dim, ", values of ", kept.v_head_dim));
    k.tracer->mark_written(layer);
    k.tracer->record(std::make_shared<WriteSource>(layer), {k, v}, k.shape());
}

} // namespace quire
