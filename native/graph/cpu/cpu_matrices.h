// The matrices of a model as the products of Quire's own kernels read them.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "graph/cpu/packed_model.h"
#include "kernels/matmul/matmul.h"

namespace quire {

// Rows of a type without a packed layout, with ggml's routine for one row.  UnsupportedError naming `what` for a type that
// cannot be multiplied.
FileRows file_rows(const std::string &what, DType dtype, const uint8_t *data, int64_t n_in);

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
