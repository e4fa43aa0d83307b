// The executor of a traced model: its passes, cut into pieces if it lies on several devices, and a cache store on each.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "graph/cpu/cpu_pairs.h"
#include "graph/run/executor.h"
#include "graph/run/executor_options.h"
#include "graph/stock/input_sums.h"

namespace quire {

class Pass;
struct OwnKernels;

class GraphExecutor : public Executor {
  public:
    // UnsupportedError if a device lacks an operation.
    GraphExecutor(Trace trace, Device device, const ExecutorOptions &options);
    ~GraphExecutor() override;

    int n_vocab() const override { return static_cast<int>(trace_.n_vocab); }
    int64_t n_output() const { return trace_.n_output(); } // numbers in a row that run() returns
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
    bool prefers_near_blocks() const override;
    void copy_block(int group, int from, int to) override;
    void copy_state(int from, int to) override;
    void discard_block(int group, int block) override;
    void discard_state(int slot) override;
    void read_block(int group, int block, uint8_t *to) override;
    void write_block(int group, int block, const uint8_t *from) override;
    void read_state(int slot, uint8_t *to) override;
    void write_state(int slot, const uint8_t *from) override;
    float *run(const StepBatch &batch) override;
    void encode(const StepBatch &batch) override;
    int n_hidden() const override { return static_cast<int>(trace_.n_hidden()); }
    const float *hidden() override;
    std::vector<int> tapped_layers() const override;
    TapRows tap(size_t i) override;
    int n_features() const override;
    int n_features_read() const override { return static_cast<int>(trace_.n_features_read); }
    int n_source_features() const override {
        return trace_.encoder ? static_cast<int>(trace_.encoder->n_features_read) : 0;
    }
    const float *features() override;

    // An adapter that requests to this model may use.  UnsupportedError if a device lacks products with a matrix per row;
    // otherwise the errors of make_adapter.  Thread-safe.
    std::shared_ptr<LowRankAdapter> adapter(std::string identity, const std::vector<AdapterPair> &pairs) const;
    // Bytes of adapters on devices, where those that no step needs stay within a limit (0: none) that is set before the
    // first step.
    size_t adapter_bytes() const;
    void keep_adapters_within(size_t size_bytes) const;

    std::shared_ptr<ThreadTeam> team() const; // used by Quire's own kernels, to be shared; null without them
    size_t cache_bytes() const; // at most in use: the budget, null blocks and the zero state
    size_t compute_bytes() const;
    size_t packed_bytes() const;
    // Bytes on a device, taken or estimated.
    struct DeviceBytes {
        size_t weights = 0, cache = 0, compute = 0;
        size_t free = 0, total = 0; // as the device reports, if nothing is allocated
    };
    std::vector<DeviceBytes> device_bytes() const; // by device; none where all of the model is on the CPU
    // Estimates them without taking memory, and the CPU's steps too.
    struct Measured {
        std::vector<DeviceBytes> devices;
        size_t cpu_compute;
    };
    static Measured measure(Trace trace, Device device, ExecutorOptions options);
    size_t n_pieces() const; // that a step runs in order
    const PackedModel *packed_model() const; // null where nothing is packed
    size_t n_graphs() const; // 1 for a program of Quire's own, which serves all sizes
    std::vector<std::string> stock_operations() const; // the program's operations that ggml's operators compute
    size_t n_nodes() const; // in the program of Quire's own kernels; 0 without one
    const InputSums *input_sums() const; // null where they are not wanted
    bool uses_own_kernels() const { return own_ != nullptr; } // for a part of the model at least
    const KernelSet *kernel_set() const; // null without kernels of our own
    int n_threads() const;

  private:
    enum class Kind { decode, encode };
    void check(const StepBatch &batch, Kind kind) const;
    void check_tables(const StepBatch &batch, Kind kind) const;
    static void check_visible(const StepBatch &batch, const GroupBatch &group, bool is_supported);
    PlacesOfCache cut_traces(const ExecutorOptions &options);
    void make_stores(const ExecutorOptions &options, const PlacesOfCache &cached);
    void make_graphs(const ExecutorOptions &options);
    void make_programs(const ExecutorOptions &options);
    bool has_part(Place place) const;
    bool has_graphs() const; // a part on a device
    std::vector<Pass *> passes() const;
    const KvStore &store() const { return *stores_.front(); } // the first; all have its layout and sizes
    // A device of the model: the CPU is one where ggml's operators are wanted there.
    struct DevicePart;
    DevicePart &first() const { return *devices_.front(); }
    bool shows_features() const; // by the last tap
    Trace trace_;
    std::vector<std::unique_ptr<DevicePart>> devices_;
    std::unique_ptr<Pass> decode_, encode_; // encode_: where the trace has an encoder
    std::vector<std::unique_ptr<KvStore>> stores_; // those of devices that have a part, then the CPU's
    size_t budget_bytes_ = 0;
    int max_sequences_;
    struct Tables { // rows of the tables that tokens, positions and types index
        int64_t n_ids, n_positions, n_types;
        explicit Tables(const Trace &trace);
    };
    Tables tables_;
    std::optional<Tables> source_tables_; // the encoder's
    GraphLimits limits_;
    std::unique_ptr<OwnKernels> own_;
};

} // namespace quire
