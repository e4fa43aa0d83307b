// The executor over ggml: graphs of a trace, the cache store, a device.
#pragma once

#include <memory>
#include <vector>

#include "graph/executor.h"
#include "graph/graph_cache.h"
#include "graph/graph_key.h"
#include "graph/packed_model.h"
#include "graph/step_inputs.h"

namespace quire {

enum class Kernels { automatic, stock, cpu };

struct ExecutorOptions {
    int n_blocks;      // of the store, the null block included
    int n_threads;     // 0: one per core
    DType kv_dtype;    // f32, f16 or bf16
    Kernels kernels;
    int max_rows;      // tokens of a step
    int max_sequences; // of a step
    Repack repack;     // weights that our own products read
};

// What the CPU lowering's nodes read: one step's batch, and a counter of handed-out work per node.
struct CpuStep;

class GraphExecutor : public Executor {
  public:
    // Lowers every bucket and freezes.  UnsupportedError when the device lacks an operation.
    GraphExecutor(Trace trace, Device device, const ExecutorOptions &options);
    ~GraphExecutor() override;

    int n_vocab() const override { return static_cast<int>(trace_.n_vocab); }
    int max_rows() const override { return buckets_.limits().max_rows; }
    int max_logit_rows() const override { return buckets_.limits().max_logit_rows; }
    int max_sequences() const override { return max_sequences_; }
    int max_kv_tokens() const override { return buckets_.limits().max_kv_tokens; }
    int n_blocks() const override { return store_.n_blocks(); }
    int block_tokens() const override { return kv_store_block_tokens; }
    void copy_block(int from, int to) override { store_.copy_block(from, to); }
    const float *run(const StepBatch &batch) override;

    size_t cache_bytes() const { return store_.size_bytes(); }
    size_t compute_bytes() const { return graphs_->compute_bytes(); }
    size_t packed_bytes() const { return packed_ ? packed_->size_bytes() : 0; }
    size_t n_graphs() const { return graphs_->n_graphs(); }
    bool uses_own_kernels() const { return cpu_step_ != nullptr; }
    int n_threads() const { return backend_.n_threads(); }

  private:
    void check(const StepBatch &batch) const;
    Trace trace_;
    Backend backend_;
    KvStore store_;
    int max_sequences_;
    std::unique_ptr<CpuStep> cpu_step_; // null with stock kernels
    std::unique_ptr<PackedModel> packed_; // null without kernels that read it
    GraphBuckets buckets_;
    std::unique_ptr<GraphCache> graphs_;
    StepInputs inputs_;
    std::vector<float> logits_; // on devices whose memory is not the host's
};

} // namespace quire
