// The pairs of an adapter (graph/trace/low_rank_adapter.h) in the forms that steps read.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/trace/low_rank_adapter.h"
#include "kernels/matmul/matmul.h"

namespace quire {

// A pair as given: A [rank, n_in] and B [n_out, rank] of F32, for the matrix of that name.
struct AdapterPair {
    std::string matrix;
    Tensor a, b;
    float factor;
};

// For products of Quire's own kernels.
class CpuPairs {
  public:
    struct Pair {
        Matrix a, b;
        float factor;
    };
    // The pair for the matrix of a product, or null.
    const Pair *find(const Weight *weight) const {
        const auto found = pairs_.find(weight);
        return found == pairs_.end() ? nullptr : &found->second;
    }

  private:
    friend class AdapterMaker;
    std::shared_ptr<uint8_t> memory_;
    std::unordered_map<const Weight *, Pair> pairs_;
};

// The weights of all products of a model, by what computes them; a weight may be in both.
struct AdaptedWeights {
    std::vector<WeightRef> on_cpu; // Quire's own kernels
    std::vector<WeightRef> on_devices; // ggml graphs
    bool devices_have_bf16 = true; // for products with a matrix per row
};

// A and B are kept in 32 bits for matrices of F32, else as BF16 where possible.  `kernels`: null without products
// `on_cpu`.  UnsupportedError for a pair that no product reads; ShapeError for one that does not fit its matrix.
std::shared_ptr<LowRankAdapter> make_adapter(std::string identity, const KernelSet *kernels,
                                             const AdaptedWeights &products, const std::vector<AdapterPair> &pairs);

// A product's matrix: a whole tensor of the file, or some of its rows.
struct MatrixRows {
    std::string tensor;
    int64_t first_row;
};
MatrixRows matrix_rows(const Weight &weight);

} // namespace quire
