// Our own kernels on the CPU, as custom nodes; operations without one are left to the stock lowering.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "graph/executor.h"
#include "graph/lower_stock.h"
#include "graph/packed_model.h"
#include "kernels/paged_attention.h"

namespace quire {

// What the custom nodes of all graphs read.  Filled before each run; block tables and lengths are data, so they are in
// no graph's key.
struct CpuStep {
    explicit CpuStep(size_t n_operations) : next(n_operations) {}
    void begin(const StepBatch &batch);
    int n_real(Lead lead) const { return lead == Lead::tokens ? batch.n_rows : n_logit_rows; }

    AttentionBatch batch{};
    int n_logit_rows = 0;
    std::vector<std::atomic<int>> next; // by operation: the next piece of work to hand out
};

class CpuLowering : public StockLowering {
  public:
    // `packed`: the matrices that our own products read; null where there are none.
    CpuLowering(const KvStore &store, CpuStep &step, const PackedModel *packed)
        : StockLowering(store), step_(step), packed_(packed) {}
    bool needs_kv_bucket() const override { return false; }

  protected:
    ggml_tensor *embed(GraphBuild &build, const op::Embed &operation, ggml_tensor *tokens) const override;
    ggml_tensor *product(GraphBuild &build, const Operation &operation, ggml_tensor *x) const override;
    ggml_tensor *attend(GraphBuild &build, const op::Attend &operation, AttendInputs inputs) const override;

  private:
    const PackedWeights *packed(const WeightRef &weight) const { return packed_ ? packed_->find(weight) : nullptr; }
    ggml_tensor *rounded(GraphBuild &build, Lead lead, ggml_tensor *x) const;
    CpuStep &step_;
    const PackedModel *packed_;
};

} // namespace quire
