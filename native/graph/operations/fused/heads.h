// Steps on the heads of queries and keys before they attend: a norm and a rotation, in place.
#pragma once

#include <optional>
#include <vector>

#include "graph/cpu/cpu_lowering.h"
#include "graph/trace/fused_operations.h"

namespace quire {

struct Rotation {
    CpuValue *table; // cosines and sines of each token's position
    int n_dims;
    RopeLayout layout;
};

struct HeadSteps {
    CpuValue *x = nullptr; // [n_head * head_dim]
    int n_head = 0, head_dim = 0;
    std::optional<RowNorm> norm;
    std::optional<Rotation> rotation;

    void apply(const RowKernels &kernels, int64_t row) const;
    std::vector<CpuValue *> used() const;
};

class HeadsNode : public CpuNode { // copies x where the heads are another value, then as above
  public:
    HeadsNode(CpuValue *x, HeadSteps steps) : x_(x), steps_(steps) {}
    void run(const CpuRun &run) override;

  private:
    CpuValue *x_;
    HeadSteps steps_;
};

// Norm and rotation of an input of operation `attend` are done where attention begins, if nobody else reads what they
// change and a product has made it: marks them.
void mark_head_steps(CpuLowering &lowering, int attend, size_t which);
// The steps that were marked before operation `i`, which attention reads.
HeadSteps head_steps(CpuLowering &lowering, int i);

} // namespace quire
