// The graphs of a model on one device, in one compute buffer, built from frozen traces when a step first needs them.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>

#include <list>
#include <map>
#include <memory>
#include <vector>

#include "core/device_faults.h"
#include "graph/stock/input_memory.h"
#include "graph/stock/lowering.h"

namespace quire {

// Runs allocated graphs.  On the CPU a graph is planned once, as planning in every step would cost time.
class GraphRunner {
  public:
    virtual ~GraphRunner() = default;
    virtual void plan(const LoweredGraph &graph) = 0; // once per graph, before it runs
    virtual void forget(const LoweredGraph &graph) = 0; // a planned graph that is evicted
    virtual void run(const LoweredGraph &graph) = 0; // throws Error; on a device it may return before the graph has run
};
std::unique_ptr<GraphRunner> make_runner(Backend &backend);

// Invariant: the tensors of every graph are in the one buffer and in the inputs' memory.  If either has to grow, it
// moves, and all graphs are discarded.
class GraphCache {
  public:
    // The lowering and the traces outlive the cache.
    GraphCache(Backend &backend, const Lowering &lowering);
    ~GraphCache();
    // The trace's number in keys.
    int add_trace(const Trace &trace);
    // Builds the graph of a key, which reserves memory for all smaller ones.  UnsupportedError if the device lacks an
    // operation.
    const LoweredGraph &reserve(const GraphKey &key);
    // Valid until the next call.  The least recently used graphs are evicted.
    const LoweredGraph &get(const GraphKey &key);
    void run(const LoweredGraph &graph) { runner_->run(graph); }
    const InputMemory &inputs() const { return inputs_; }
    void forget_all();
    size_t compute_bytes() const;
    size_t n_graphs() const { return graphs_.size(); }

  private:
    struct FreeAllocator {
        Device device;
        void operator()(ggml_gallocr *allocator) const { free_allocator(allocator, device); }
    };
    void check_supported(const LoweredGraph &graph) const;
    const LoweredGraph &add(LoweredGraph graph);
    const LoweredGraph &measure(LoweredGraph graph);
    void make_allocator();
    LoweredGraph lowered(const GraphKey &key) const;
    Backend &backend_;
    std::vector<const Trace *> traces_;
    const Lowering &lowering_;
    std::unique_ptr<GraphRunner> runner_;
    InputMemory inputs_;
    std::unique_ptr<ggml_gallocr, FreeAllocator> allocator_;
    size_t measured_bytes_ = 0;
    std::list<LoweredGraph> graphs_; // most recently used first
    std::map<GraphKey, std::list<LoweredGraph>::iterator> by_key_;
};

} // namespace quire
