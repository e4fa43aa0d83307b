// Our own kernels on the CPU, as custom nodes; operations without one are left to the stock lowering.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "graph/executor.h"
#include "graph/lower_stock.h"
#include "kernels/paged_attention.h"

namespace quire {

// What the custom nodes of all graphs read.  Filled before each run; block tables and lengths are data, so they are in
// no graph's key.
struct CpuStep {
    explicit CpuStep(size_t n_layer) : next(n_layer) {}
    void begin(const StepBatch &batch);

    AttentionBatch batch{};
    std::vector<std::atomic<int>> next; // by layer: the next piece of attention to hand out
};

class CpuLowering : public StockLowering {
  public:
    CpuLowering(const KvStore &store, CpuStep &step) : StockLowering(store), step_(step) {}
    bool needs_kv_bucket() const override { return false; }

  protected:
    ggml_tensor *attend(GraphBuild &build, const op::Attend &operation, AttendInputs inputs) const override;

  private:
    CpuStep &step_;
};

} // namespace quire
