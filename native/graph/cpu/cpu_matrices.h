// The matrices of a model as the products of Quire's own kernels read them.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "graph/cpu/packed_model.h"
#include "kernels/matmul/matmul.h"

namespace quire {

// The matrices it returns live as long as it does.
class CpuMatrices {
  public:
    // `packed`: matrices in Quire's own layout, packed for the same kernels; null without any.
    CpuMatrices(const KernelSet &kernels, const PackedModel *packed) : kernels_(kernels), packed_(packed) {}
    // A weight [n_out, n_in]; UnsupportedError for a type that cannot be multiplied.
    const Matrix *find(const WeightRef &weight);
    // The matrices of a weight [n_expert, n_out, n_in].
    const std::vector<const Matrix *> &experts(const WeightRef &weight);

  private:
    KernelSet kernels_;
    const PackedModel *packed_;
    std::deque<Matrix> matrices_;
    std::map<const Weight *, std::vector<const Matrix *>> known_;
};

} // namespace quire
