// All graphs of a model on one device, over one compute buffer.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>

#include <map>
#include <memory>
#include <vector>

#include "core/device.h"
#include "graph/lowering.h"

namespace quire {

// Runs allocated graphs.  On the CPU a graph is planned once and computed often: planning every step costs.
class GraphRunner {
  public:
    virtual ~GraphRunner() = default;
    virtual void plan(const LoweredGraph &graph) = 0; // once per graph, before it runs
    virtual void run(const LoweredGraph &graph) = 0;  // throws Error
};
std::unique_ptr<GraphRunner> make_runner(Backend &backend);

// Invariants: tensors of every graph lie in the one buffer, whose address does not change once frozen; after freeze()
// no graph is added.
class GraphCache {
  public:
    GraphCache(const Backend &backend, std::unique_ptr<GraphRunner> runner);
    // Lower and allocate a graph per key (the largest first), then freeze.
    void fill(const Trace &trace, const Lowering &lowering, const std::vector<GraphKey> &keys);
    const LoweredGraph &get(GraphKey key) const; // InternalError when there is none
    void run(const LoweredGraph &graph) { runner_->run(graph); }
    size_t compute_bytes() const;
    size_t n_graphs() const { return graphs_.size(); }

  private:
    struct FreeAllocator {
        void operator()(ggml_gallocr *allocator) const { ggml_gallocr_free(allocator); }
    };
    bool try_fill(const Trace &trace, const Lowering &lowering, const std::vector<GraphKey> &keys);
    void check_supported(const LoweredGraph &graph) const;
    const Backend &backend_;
    std::unique_ptr<GraphRunner> runner_;
    std::unique_ptr<ggml_gallocr, FreeAllocator> allocator_;
    std::map<GraphKey, LoweredGraph> graphs_;
    bool frozen_ = false;
};

} // namespace quire
