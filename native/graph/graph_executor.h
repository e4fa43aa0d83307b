// The executor of a traced model: its passes, cut into pieces where it lies on two devices, and a cache store on each.
#pragma once

#include <memory>
#include <vector>

#include "graph/executor.h"
#include "graph/executor_options.h"
#include "graph/input_sums.h"

namespace quire {

class DeviceWeights;
class Pass;
struct OwnKernels;
struct StockDevice;

class GraphExecutor : public Executor {
  public:
    // UnsupportedError when the device lacks an operation.
    GraphExecutor(Trace trace, Device device, const ExecutorOptions &options);
    ~GraphExecutor() override;

    int n_vocab() const override { return static_cast<int>(trace_.n_vocab); }
    int64_t n_output() const { return trace_.n_output(); } // of a row of what run() gives
    bool makes_logits() const override { return trace_.kind == OutputKind::logits; }
    bool undivided_prompts() const override { return trace_.attends_both_ways(); }
    bool reads_token_types() const override { return trace_.reads_token_types(); }
    int max_rows() const override { return limits_.max_rows; }
    int max_logit_rows() const override { return limits_.max_logit_rows; }
    float *maxima() override;
    int max_sequences() const override { return max_sequences_; }
    int max_kv_tokens() const override { return cache().groups().empty() ? 0 : limits_.max_kv_tokens; }
    const CacheLayout &cache() const override { return store().layout(); }
    int n_blocks(int group) const override { return store().sizes().n_blocks[static_cast<size_t>(group)]; }
    int n_states() const override { return store().sizes().n_states; }
    size_t cache_budget_bytes() const override { return budget_bytes_; }
    void copy_block(int group, int from, int to) override;
    void copy_state(int from, int to) override;
    void discard_block(int group, int block) override;
    void discard_state(int slot) override;
    float *run(const StepBatch &batch) override;
    void encode(const StepBatch &batch) override;
    int n_hidden() const override { return static_cast<int>(trace_.n_hidden()); }
    const float *hidden() override;
    std::vector<int> tapped_layers() const override;
    TapRows tap(size_t i) override;
    int n_features() const override;
    int n_features_read() const override { return static_cast<int>(trace_.n_features_read); }
    const float *features() override;

    std::shared_ptr<ThreadTeam> team() const; // of our own kernels, to be shared; null without
    size_t cache_bytes() const; // at most in use: the budget, null blocks and the zero state
    size_t compute_bytes() const;
    size_t packed_bytes() const;
    // Of a model on two devices, what the device has: copies of weights, cache and compute buffer; 0 else.
    struct DeviceBytes {
        size_t weights, cache, compute;
    };
    DeviceBytes device_bytes() const;
    size_t n_pieces() const; // that a step runs one after the other
    const PackedModel *packed_model() const; // null where nothing is packed
    size_t n_graphs() const; // a program of our own serves all sizes: 1
    std::vector<std::string> stock_operations() const; // of the program: those that ggml's operators compute
    size_t n_nodes() const; // of the program of our own; 0 where there is none
    const InputSums *input_sums() const; // null where they are not wanted
    bool uses_own_kernels() const { return own_ != nullptr; } // for a part of the model at least
    const KernelSet *kernel_set() const; // null without kernels of our own
    int n_threads() const { return backend_.n_threads(); }

  private:
    enum class Kind { decode, encode };
    void check(const StepBatch &batch, Kind kind) const;
    void check_tables(const StepBatch &batch, Kind kind) const;
    PlacesOfRows cut_traces(const ExecutorOptions &options);
    void make_stores(const ExecutorOptions &options, const PlacesOfRows &rows);
    void make_graphs(const ExecutorOptions &options);
    void make_programs(const ExecutorOptions &options);
    bool has_part(Place place) const;
    bool is_mixed() const { return copies_ != nullptr; }
    std::vector<Pass *> passes() const;
    const KvStore &store() const { return *stores_.front(); } // whose layout and sizes are those of all
    bool shows_features() const; // by the last tap
    Trace trace_;
    Backend backend_;
    std::unique_ptr<Pass> decode_, encode_; // encode_: where the trace has an encoder
    std::vector<std::unique_ptr<KvStore>> stores_; // the device's, then the CPU's where both have a part
    size_t budget_bytes_ = 0;
    int max_sequences_;
    int64_t n_ids_, n_positions_, n_types_; // tables that tokens, positions and types index have so many rows
    GraphLimits limits_;
    std::unique_ptr<DeviceWeights> copies_;
    std::unique_ptr<StockDevice> stock_;
    std::unique_ptr<OwnKernels> own_;
};

} // namespace quire
