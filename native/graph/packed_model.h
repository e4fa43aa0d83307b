// The matrices of a model in the layout that our own products read, made once when the model is loaded.
#pragma once

#include <map>
#include <memory>

#include "graph/operations.h"
#include "kernels/packed_weights.h"

namespace quire {

// Whether matrices are packed, and what becomes of the memory that they were read from.
enum class Repack {
    no,
    keep,   // somebody else may read it
    release, // its pages are given back to the system while packing goes on: nobody reads them again
    lock     // the same, and the packed form is locked in memory
};

// A matrix in tiles, with its memory.
struct PackedTensor {
    std::shared_ptr<uint8_t> memory;
    PackedWeights weights;
};

// Whether there is a layout for the tensor: a matrix, or several of one shape, [n, n_out, n_in], which are packed as one
// of n * n_out rows.
bool can_pack(const Tensor &tensor);
// UnsupportedError where there is none, CapacityError when memory does not suffice.
PackedTensor pack(const Tensor &tensor, Repack repack, int n_threads);

class PackedModel {
  public:
    // Packs every matrix that a product, a table look-up or experts of the trace read, where there is a layout for it.
    // CapacityError when memory does not suffice.
    PackedModel(const Trace &trace, Repack repack, int n_threads);

    // The packed form, or null.
    const PackedWeights *find(const WeightRef &weight) const;
    size_t size_bytes() const { return size_bytes_; }

  private:
    std::map<const Weight *, PackedTensor> matrices_;
    size_t size_bytes_ = 0;
};

} // namespace quire
