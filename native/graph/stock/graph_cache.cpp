#include "graph/stock/graph_cache.h"

#include <ggml-cpu.h>

#include "core/error.h"
#include "graph/stock/graph_internals.h"
#include "graph/stock/node_check.h"

namespace quire {
namespace {

constexpr size_t most_graphs = 64; // per trace

void check_status(ggml_status status, Device device) {
    if (status == GGML_STATUS_SUCCESS) return;
    if (status == GGML_STATUS_ALLOC_FAILED)
        throw CapacityError("graph", cat(device.name(), " is out of memory for a step"));
    const std::string how = cat("a graph failed with ", ggml_status_to_string(status));
    if (device.kind() == DeviceKind::cpu) throw InternalError("graph", how);
    lose(device, how);
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

    void forget(const LoweredGraph &graph) override { plans_.erase(graph.graph); }

    void run(const LoweredGraph &graph) override {
        ggml_cplan &plan = plans_.at(graph.graph);
        plan.work_data = work_.data();
        check_status(compute_(graph.graph, &plan), backend_.device());
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
    void forget(const LoweredGraph &) override {}
    void run(const LoweredGraph &graph) override {
        if (compares_nodes()) return run_and_compare(backend_, graph.graph);
        check_status(ggml_backend_graph_compute_async(backend_.handle(), graph.graph), backend_.device());
    }

  private:
    const Backend &backend_;
};

} // namespace

std::unique_ptr<GraphRunner> make_runner(Backend &backend) {
    if (backend.is_cpu()) return std::make_unique<CpuRunner>(backend);
    return std::make_unique<DeviceRunner>(backend);
}

GraphCache::GraphCache(Backend &backend, const Lowering &lowering)
    : backend_(backend), lowering_(lowering), runner_(make_runner(backend)), inputs_(backend),
      allocator_(nullptr, FreeAllocator{backend.device()}) {
    make_allocator();
}

GraphCache::~GraphCache() = default;

int GraphCache::add_trace(const Trace &trace) {
    traces_.push_back(&trace);
    return static_cast<int>(traces_.size()) - 1;
}

void GraphCache::check_supported(const LoweredGraph &graph) const {
    for (int i = 0; i < ggml_graph_n_nodes(graph.graph); ++i) {
        ggml_tensor *node = ggml_graph_node(graph.graph, i);
        if (!ggml_backend_supports_op(backend_.handle(), node)) {
            const char *type = node->src[0] == nullptr ? "none" : ggml_type_name(node->src[0]->type);
            throw UnsupportedError("graph", cat("device ", backend_.device().name(),
                                                " does not support an operation of the model: ", ggml_op_desc(node),
                                                " of ", type));
        }
    }
}

void GraphCache::make_allocator() {
    allocator_.reset(ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend_.handle())));
    if (!allocator_) throw CapacityError("graph", "out of memory: allocator of the compute buffer");
}

void GraphCache::forget_all() {
    for (const LoweredGraph &graph : graphs_) runner_->forget(graph);
    by_key_.clear();
    graphs_.clear();
}

LoweredGraph GraphCache::lowered(const GraphKey &key) const {
    LoweredGraph graph = lowering_.lower(*traces_.at(static_cast<size_t>(key.trace)), key);
    if (!graph.unpaged_groups.empty())
        throw InternalError("graph", "block tables are planned for a device without a kernel for them");
    return graph;
}

const LoweredGraph &GraphCache::add(LoweredGraph graph) {
    inputs_.place(graph, [this] { forget_all(); });
    if (backend_.measures()) return measure(std::move(graph));
    const size_t size_bytes = compute_bytes();
    if (!allocate_graph(backend_, allocator_.get(), graph)) {
        forget_all(); // the memory was freed behind the allocator's back
        make_allocator();
        throw CapacityError("graph", cat("the compute buffer does not fit on ", backend_.device().name()));
    }
    if (compute_bytes() != size_bytes) forget_all();
    if (graphs_.size() >= most_graphs * traces_.size()) {
        runner_->forget(graphs_.back());
        by_key_.erase(graphs_.back().key);
        graphs_.pop_back();
    }
    graphs_.push_front(std::move(graph));
    by_key_.emplace(graphs_.front().key, graphs_.begin());
    runner_->plan(graphs_.front());
    return graphs_.front();
}

const LoweredGraph &GraphCache::measure(LoweredGraph graph) {
    measured_bytes_ = std::max(measured_bytes_, measure_graph(backend_, allocator_.get(), graph));
    graphs_.push_front(std::move(graph));
    return graphs_.front();
}

const LoweredGraph &GraphCache::reserve(const GraphKey &key) {
    if (by_key_.contains(key)) return get(key);
    LoweredGraph graph = lowered(key);
    check_supported(graph);
    return add(std::move(graph));
}

const LoweredGraph &GraphCache::get(const GraphKey &key) {
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return add(lowered(key));
    graphs_.splice(graphs_.begin(), graphs_, found->second);
    return graphs_.front();
}

size_t GraphCache::compute_bytes() const {
    return backend_.measures() ? measured_bytes_ : ggml_gallocr_get_buffer_size(allocator_.get(), 0);
}

} // namespace quire
