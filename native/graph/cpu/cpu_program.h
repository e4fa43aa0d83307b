// A forward pass as Quire's own nodes on the CPU, built by lower_cpu from a trace.
//
// One program serves every step: the number of rows is data, like block tables and lengths.  Its buffer is large
// enough for the largest step; small steps touch little of it.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "graph/cpu/adapter_rows.h"
#include "graph/trace/step_batch.h"
#include "graph/trace/trace.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/kernel_set.h"
#include "kernels/thread_team.h"

namespace quire {

// Dense rows [n, row_bytes] in the program's buffer.
struct CpuValue {
    Lead lead;
    int64_t row_bytes;
    int64_t rows_per_lead = 1; // more where each token has several
    bool is_blocks = false;    // a row is a block: those of the step's own rows, no sequence sharing one
    int first = -1, last = -1; // nodes that write and read it
    uint8_t *data = nullptr;

    float *floats() const { return reinterpret_cast<float *>(data); }
    int64_t n_floats() const { return row_bytes / static_cast<int64_t>(sizeof(float)); }
};

// A step as nodes see it.
struct CpuRun {
    const StepBatch &batch;
    std::vector<AttentionBatch> groups; // by group of the cache
    ThreadTeam &team;
    const KernelSet &kernels;

    // A plan for each group of the cache, and one more if rows are not cached: `own_rows` tells where.
    CpuRun(const StepBatch &batch, ThreadTeam &team, const KernelSet &kernels, std::vector<AttentionPlan> &plans,
           GroupBatch &own_rows);
    // Rows with adapters, of the step or of its logits.
    const std::vector<AdapterRows> &adapters(Lead lead) const {
        return lead == Lead::tokens ? token_adapters_ : logit_adapters_;
    }
    int n(Lead lead) const {
        return static_cast<int>(lead == Lead::tokens ? batch.tokens.size() : batch.logit_rows.size());
    }
    int n_sequences() const { return static_cast<int>(batch.n_kv.size()); }

  private:
    std::vector<AdapterRows> token_adapters_, logit_adapters_;
};

// The number of rows, of that many numbers, that are handed out together: work of less than a few microseconds is not
// worth waking another thread for.
int rows_together(int64_t row_floats);

class CpuNode {
  public:
    virtual ~CpuNode() = default;
    virtual void place() {} // once, when the values of the program have their memory
    virtual void run(const CpuRun &run) = 0;
};

struct CpuProgramLimits {
    int max_rows, max_logit_rows, max_sequences;
};

// Invariants: a node only uses values that were added with it; nothing is added after finish().
class CpuProgram {
  public:
    explicit CpuProgram(const KernelSet &kernels) : kernels_(kernels) {}
    const KernelSet &kernels() const { return kernels_; }
    CpuValue *value(Lead lead, int64_t row_bytes, int64_t rows_per_lead = 1);
    CpuValue *block_value(int64_t block_bytes);
    CpuValue *floats(Lead lead, int64_t n) { return value(lead, n * static_cast<int64_t>(sizeof(float))); }
    // `values`: all that the node reads or writes.
    void add(std::unique_ptr<CpuNode> node, const std::vector<CpuValue *> &values);
    // A node will attend with this shape to the rows of a group.
    void add_attention(int group, const AttentionShape &shape);
    // A node will write to the rows of a group.
    void add_written(int group) { plans_.resize(std::max(plans_.size(), static_cast<size_t>(group) + 1)); }
    // Lays the values out: the caller reads `output`, which may be null.  place() gives them size_bytes() of memory,
    // which programs that run before or after may share.
    void finish(CpuValue *output, CpuProgramLimits limits);
    void place(uint8_t *memory);
    // The hidden states: a value of the program, or computed by `node` from `from` in steps that need them.
    void show_hidden(CpuValue *value, std::unique_ptr<CpuNode> node, CpuValue *from);

    // Values that the caller reads after each step, in order.
    void show_tap(CpuValue *value) { taps_.push_back(value); }
    const float *tap(size_t i) const { return taps_[i]->floats(); }

    // The largest of each strip of logits: a value of the program.
    void show_maxima(CpuValue *value) { maxima_ = value; }

    // As Executor::run(); null where there is no output.
    float *run(const StepBatch &batch, ThreadTeam &team);
    // Hidden states of the batch's logit rows, if it wanted them.
    const float *hidden() const { return hidden_ == nullptr ? nullptr : hidden_->floats(); }
    // As Executor::maxima(), of the last run.
    float *maxima() const { return maxima_ == nullptr ? nullptr : maxima_->floats(); }
    size_t size_bytes() const { return size_bytes_; }
    size_t n_nodes() const { return nodes_.size(); }
    // Names of operations that ggml's operators compute, for lack of a kernel of Quire's own.
    void note_stock_operation(const std::string &name) { stock_operations_.insert(name); }
    const std::set<std::string> &stock_operations() const { return stock_operations_; }

  private:
    KernelSet kernels_;
    std::deque<CpuValue> values_; // a deque, so that addresses stay
    std::vector<std::unique_ptr<CpuNode>> nodes_;
    std::set<std::string> stock_operations_;
    std::vector<size_t> offsets_; // by value
    size_t size_bytes_ = 0;
    const CpuValue *output_ = nullptr;
    CpuValue *hidden_ = nullptr, *hidden_from_ = nullptr, *maxima_ = nullptr;
    std::unique_ptr<CpuNode> hidden_node_; // run last
    std::vector<CpuValue *> taps_;
    std::vector<AttentionPlan> plans_; // for the current step, by group; the last may be that of its own rows
    GroupBatch own_rows_;
};

} // namespace quire
