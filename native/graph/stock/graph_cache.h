// Graphs of a model on one device, over one compute buffer, made of frozen traces when a step first needs them.
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

// Runs allocated graphs.  On the CPU a graph is planned once and computed often: planning every step costs.
class GraphRunner {
  public:
    virtual ~GraphRunner() = default;
    virtual void plan(const LoweredGraph &graph) = 0; // once per graph, before it runs
    virtual void forget(const LoweredGraph &graph) = 0; // a planned one that goes
    virtual void run(const LoweredGraph &graph) = 0; // throws Error; on a device it may return before the graph has run
};
std::unique_ptr<GraphRunner> make_runner(Backend &backend);

// Invariant: tensors of every graph lie in the one buffer and in the inputs' memory.  Where either must grow, it
// moves, and all graphs go.
class GraphCache {
  public:
    // The lowering and the traces outlive the cache.
    GraphCache(Backend &backend, const Lowering &lowering);
    ~GraphCache();
    // The trace's number in keys.
    int add_trace(const Trace &trace);
    // Make the graph for a key, so that there is memory for all that are smaller; UnsupportedError when the device
    // lacks an operation of it.
    const LoweredGraph &reserve(const GraphKey &key);
    // Valid until the next call.  The graphs that were not used for longest go.
    const LoweredGraph &get(const GraphKey &key);
    void run(const LoweredGraph &graph) { runner_->run(graph); }
    const InputMemory &inputs() const { return inputs_; }
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
    void forget_all();
    void make_allocator();
    LoweredGraph lowered(const GraphKey &key) const;
    Backend &backend_;
    std::vector<const Trace *> traces_;
    const Lowering &lowering_;
    std::unique_ptr<GraphRunner> runner_;
    InputMemory inputs_;
    std::unique_ptr<ggml_gallocr, FreeAllocator> allocator_;
    size_t measured_bytes_ = 0;
    std::list<LoweredGraph> graphs_; // the last used first
    std::map<GraphKey, std::list<LoweredGraph>::iterator> by_key_;
};

} // namespace quire
