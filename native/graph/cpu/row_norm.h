// Root mean square norms of rows, as programs hold them.
#pragma once

#include "graph/cpu/cpu_program.h"

namespace quire {

// A norm over the last n values; without weight where it is null.
struct RowNorm {
    const float *weight;
    float eps;
    int64_t n;
};

class NormNode : public CpuNode {
  public:
    NormNode(CpuValue *x, RowNorm norm, CpuValue *out) : x_(x), out_(out), norm_(norm) {}
    void run(const CpuRun &run) override;

  private:
    CpuValue *x_, *out_;
    RowNorm norm_;
};

} // namespace quire
