#include "graph/graph_cache.h"

#include <ggml-cpu.h>

#include "core/error.h"

namespace quire {
namespace {

void check(ggml_status status) {
    if (status != GGML_STATUS_SUCCESS)
        throw InternalError("graph", cat("a graph must run but ended with ", ggml_status_to_string(status)));
}

// Plans of all graphs share one work buffer: only one runs at a time.
class CpuRunner : public GraphRunner {
  public:
    explicit CpuRunner(Backend &backend)
        : backend_(backend), plan_(reinterpret_cast<decltype(&ggml_graph_plan)>(cpu_symbol("ggml_graph_plan"))),
          compute_(reinterpret_cast<decltype(&ggml_graph_compute)>(cpu_symbol("ggml_graph_compute"))) {}

    void plan(const LoweredGraph &graph) override {
        ggml_cplan plan = plan_(graph.graph, backend_.n_threads(), backend_.team());
        if (plan.work_size > work_.size()) work_.resize(plan.work_size);
        plans_[graph.graph] = plan;
    }

    void run(const LoweredGraph &graph) override {
        ggml_cplan &plan = plans_.at(graph.graph);
        plan.work_data = work_.data();
        check(compute_(graph.graph, &plan));
    }

  private:
    Backend &backend_;
    decltype(&ggml_graph_plan) plan_;
    decltype(&ggml_graph_compute) compute_;
    std::map<ggml_cgraph *, ggml_cplan> plans_;
    std::vector<uint8_t> work_;
};

class DeviceRunner : public GraphRunner {
  public:
    explicit DeviceRunner(const Backend &backend) : backend_(backend) {}
    void plan(const LoweredGraph &) override {}
    void run(const LoweredGraph &graph) override { check(ggml_backend_graph_compute(backend_.handle(), graph.graph)); }

  private:
    const Backend &backend_;
};

} // namespace

std::unique_ptr<GraphRunner> make_runner(Backend &backend) {
    if (backend.is_cpu()) return std::make_unique<CpuRunner>(backend);
    return std::make_unique<DeviceRunner>(backend);
}

GraphCache::GraphCache(const Backend &backend, std::unique_ptr<GraphRunner> runner)
    : backend_(backend), runner_(std::move(runner)),
      allocator_(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend.handle()))) {
    if (!allocator_) throw CapacityError("graph", "a compute buffer's allocator must fit in memory but does not");
}

void GraphCache::check_supported(const LoweredGraph &graph) const {
    for (int i = 0; i < ggml_graph_n_nodes(graph.graph); ++i) {
        ggml_tensor *node = ggml_graph_node(graph.graph, i);
        if (!ggml_backend_supports_op(backend_.handle(), node)) {
            const char *type = node->src[0] == nullptr ? "none" : ggml_type_name(node->src[0]->type);
            throw UnsupportedError("graph", cat("device ", backend_.device().name(),
                                                " must support every operation of the model but not ",
                                                ggml_op_desc(node), " of ", type));
        }
    }
}

bool GraphCache::try_fill(const Trace &trace, const Lowering &lowering, const std::vector<GraphKey> &keys) {
    graphs_.clear();
    size_t size_bytes = ggml_gallocr_get_buffer_size(allocator_.get(), 0);
    bool first = true;
    for (GraphKey key : keys) {
        LoweredGraph graph = lowering.lower(trace, key);
        if (first) {
            check_supported(graph);
            if (!ggml_gallocr_reserve(allocator_.get(), graph.graph))
                throw CapacityError("graph", "the compute buffer must fit in memory but does not");
            size_bytes = ggml_gallocr_get_buffer_size(allocator_.get(), 0);
        }
        first = false;
        if (!ggml_gallocr_alloc_graph(allocator_.get(), graph.graph))
            throw CapacityError("graph", "the compute buffer must fit in memory but does not");
        // A grown buffer moved, and the graphs before this one point to where it was.
        if (ggml_gallocr_get_buffer_size(allocator_.get(), 0) != size_bytes) return false;
        graphs_.emplace(key, std::move(graph));
    }
    return true;
}

void GraphCache::fill(const Trace &trace, const Lowering &lowering, const std::vector<GraphKey> &keys) {
    if (frozen_) throw InternalError("graph", "no graph may be added once the cache is frozen");
    // The largest graph is reserved first, yet another may fragment more; then the buffer has grown and all are redone in it.
    for (int attempt = 0; attempt < 8 && !frozen_; ++attempt) frozen_ = try_fill(trace, lowering, keys);
    if (!frozen_) throw InternalError("graph", "the compute buffer must settle but keeps growing");
    for (auto &[key, graph] : graphs_) runner_->plan(graph);
}

const LoweredGraph &GraphCache::get(GraphKey key) const {
    auto found = graphs_.find(key);
    if (found == graphs_.end()) {
        throw InternalError("graph", cat("a graph for ", key.n_tokens, " tokens, ", key.n_rows, " rows, ", key.n_kv,
                                         " cached must be made at load but is not: the cache is frozen"));
    }
    return found->second;
}

size_t GraphCache::compute_bytes() const { return ggml_gallocr_get_buffer_size(allocator_.get(), 0); }

} // namespace quire
