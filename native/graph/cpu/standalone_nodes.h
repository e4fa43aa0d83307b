// Nodes of standalone operations in a CPU program.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "graph/cpu/cpu_program.h"
#include "kv/kv_store.h"

namespace quire {

// One row of the result from one row of each input, all of f32 (ids: i32).  Called from several threads.
using RowFunction = std::function<void(std::span<const void *const> inputs, float *out)>;

// Everything that the node of a standalone operation may refer to.
struct CpuNodeParts {
    std::vector<CpuValue *> inputs;
    CpuValue *out;
    const KvStore &store;
};

// An input of the step (tokens_operation and so on) as a value that nodes read.
class IdsNode : public CpuNode {
  public:
    IdsNode(int operation, CpuValue *out) : operation_(operation), out_(out) {}
    void run(const CpuRun &run) override;

  private:
    int operation_;
    CpuValue *out_;
};

// Rows that do not depend on each other, computed by a function of one row.
class RowNode : public CpuNode {
  public:
    RowNode(RowFunction function, std::vector<CpuValue *> inputs, CpuValue *out)
        : function_(std::move(function)), inputs_(std::move(inputs)), out_(out) {}
    void run(const CpuRun &run) override;

  private:
    RowFunction function_;
    std::vector<CpuValue *> inputs_;
    CpuValue *out_;
};

// ggml's operators on one thread: correct for every operation, and fast enough for rare ones.
class StockNode : public CpuNode {
  public:
    struct Input {
        CpuValue *value;
        TraceShape shape;
    };
    StockNode(const OperationKind &operation, std::vector<Input> inputs, CpuValue *out, TraceShape shape);
    ~StockNode() override;
    void run(const CpuRun &run) override;

  private:
    struct Memory;
    const OperationKind &operation_; // the trace's
    std::vector<Input> inputs_;
    CpuValue *out_;
    TraceShape shape_;
    std::unique_ptr<Memory> memory_;
};

} // namespace quire
