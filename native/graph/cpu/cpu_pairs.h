// The pairs of an adapter (graph/trace/low_rank_adapter.h) in the forms that steps read.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/trace/low_rank_adapter.h"
#include "kernels/matmul/matmul.h"

namespace quire {

// A pair as given, in F32, for the matrix of that name: A [rank, n_in] and B [n_out, rank]; or B [n_out, n_in] alone.  For
// lookups in a table A is [n_rows, rank] and B [n, rank], or B [n_rows, n] alone.
struct AdapterPair {
    std::string matrix;
    bool is_table;
    std::optional<Tensor> a;
    Tensor b;
    float factor;
    std::optional<Tensor> bias; // [n_out], added to the product times the scale
    std::optional<Tensor> lengths; // [4, n_out]: those of RowLengths, in their order
    int64_t n_rows() const { return is_table && a ? a->shape()[0] : b.shape()[0]; } // rows of the matrix
};

// For Quire's own kernels.
class CpuPairs {
  public:
    struct Pair {
        // A product has b, and a unless b is the difference of a whole matrix.  A lookup has a, and b unless a is that.
        std::optional<Matrix> a, b;
        float factor;
        std::vector<float> bias;
        RowLengths lengths;
        int64_t n_out() const { return b ? b->n_out : a->n_in; }
        int64_t size_bytes() const { return (a ? a->size_bytes() : 0) + (b ? b->size_bytes() : 0); }
    };
    // The pair for a product or a lookup, or null.
    const Pair *find(const AdaptedUse &use) const {
        const auto found = pairs_.find(use);
        return found == pairs_.end() ? nullptr : &found->second;
    }

  private:
    friend class AdapterMaker;
    std::shared_ptr<uint8_t> memory_;
    std::map<AdaptedUse, Pair> pairs_;
};

// The weights of all products and lookups of tokens of a model, by what computes them; a weight may be in both.
struct AdaptedWeights {
    struct Use {
        WeightRef weight;
        bool is_table;
    };
    std::vector<Use> on_cpu; // Quire's own kernels
    std::vector<Use> on_devices; // ggml graphs
    bool devices_have_bf16 = true; // for products with a matrix per row
};

// A and B are kept in 32 bits for matrices of F32, else as BF16 where possible.  `kernels`: null without products
// `on_cpu`.  UnsupportedError for a pair that nothing reads; ShapeError for one that does not fit its matrix.
std::shared_ptr<LowRankAdapter> make_adapter(std::string identity, const KernelSet *kernels,
                                             const AdaptedWeights &products, const std::vector<AdapterPair> &pairs);

// A product's matrix: a whole tensor of the file, or some of its rows.
struct MatrixRows {
    std::string tensor;
    int64_t first_row;
};
MatrixRows matrix_rows(const Weight &weight);

} // namespace quire
