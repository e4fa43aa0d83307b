// How primitives run inside of a program on the CPU.
#pragma once

#include <memory>
#include <vector>

#include "core/device.h"
#include "graph/cpu_program.h"
#include "graph/primitive.h"
#include "kv/kv_store.h"

namespace quire {

// What a primitive's own node may refer to.
struct CpuNodeParts {
    std::vector<CpuValue *> inputs;
    CpuValue *out;
    const KvStore &store;
};

// Ids of a step as a value that primitives read.
class IdsNode : public CpuNode {
  public:
    enum class Of { tokens, positions };
    IdsNode(Of of, CpuValue *out) : of_(of), out_(out) {}
    void run(const CpuRun &run) override;

  private:
    Of of_;
    CpuValue *out_;
};

// Rows that do not depend on each other, by a function of one row.
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

// ggml's operators, by one thread: right for every primitive, and fast enough for those that are rare.
class StockNode : public CpuNode {
  public:
    struct Input {
        CpuValue *value;
        TraceShape shape;
    };
    StockNode(std::shared_ptr<const Primitive> primitive, std::vector<Input> inputs, CpuValue *out, TraceShape shape);
    ~StockNode() override;
    void run(const CpuRun &run) override;

  private:
    struct Memory;
    std::shared_ptr<const Primitive> primitive_;
    std::vector<Input> inputs_;
    CpuValue *out_;
    TraceShape shape_;
    std::unique_ptr<Memory> memory_;
};

} // namespace quire
