// The matrices of a model as the products of our own kernels read them.
#pragma once

#include <deque>
#include <map>
#include <vector>

#include "graph/cpu/packed_model.h"
#include "kernels/matmul/matmul.h"

namespace quire {

// What it gives out lives as long as it does.
class CpuMatrices {
  public:
    // `packed`: matrices in a layout of our own, made for the same kernels; null where there are none.
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
