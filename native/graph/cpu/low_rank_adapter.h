// Low-rank adapters (Hu et al. 2021, "LoRA") that are loaded beside a running model, in the form that its steps read.
//
// For a matrix W that an adapter has a pair for, rows x of sequences with the adapter get scale * factor * B (A x) added
// to W x.  An adapter is immutable, and lives as long as a request or its owner holds it, so that adapters come and go
// without a change of the trace.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/trace/trace.h"
#include "kernels/matmul/matmul.h"

namespace quire {

// A pair as given: A [rank, n_in] and B [n_out, rank] of F32, for the matrix of that name.
struct AdapterPair {
    std::string matrix;
    Tensor a, b;
    float factor;
};

class LowRankAdapter {
  public:
    struct Pair {
        Matrix a, b;
        float factor;
    };
    // `products`: the weights of all products of the model.  A and B are kept in 32 bits for matrices of F32, else as
    // BF16.  `identity`: names the adapter's contents.  UnsupportedError for a pair that no product reads; ShapeError for
    // one that does not fit its matrix.
    LowRankAdapter(std::string identity, const KernelSet &kernels, const std::vector<WeightRef> &products,
                   const std::vector<AdapterPair> &pairs);

    const std::string &identity() const { return identity_; }
    size_t size_bytes() const { return size_bytes_; }
    // The pair for the matrix of a product, or null.
    const Pair *find(const Weight *weight) const {
        const auto found = pairs_.find(weight);
        return found == pairs_.end() ? nullptr : &found->second;
    }

  private:
    std::string identity_;
    std::shared_ptr<uint8_t> memory_;
    size_t size_bytes_ = 0;
    std::vector<WeightRef> weights_; // kept, as their addresses are keys
    std::unordered_map<const Weight *, Pair> pairs_;
};

// A product's matrix: a whole tensor of the file, or some of its rows.
struct MatrixRows {
    std::string tensor;
    int64_t first_row;
};
MatrixRows matrix_rows(const Weight &weight);

} // namespace quire
