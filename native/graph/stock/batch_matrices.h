// Copies of matrices in the order of tensor cores, beside the ordinary ones, for products of 2 to 64 rows
// (cuda/batch_product.h).  QUIRE_BATCH_PRODUCTS chooses them: "1", or a table of plans, which
// benchmarks/tune_kernels.py writes.  They take as much memory as the matrices again, and the kernels have never been
// timed, so by default there are none.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "cuda/batch_product.h"

namespace quire {

// Plans for matrices by type and size.
class BatchPlans {
  public:
    // Plans as QUIRE_BATCH_PRODUCTS asks; null if it is not set.  LoadError if the table cannot be read.
    static std::optional<BatchPlans> wanted();
    // `text`: lines of "type n_in n_out variant n_splits", with "experts:" before the type for those of an expert; a
    // variant of -1 leaves the matrix to ggml; # starts a comment.
    static BatchPlans parsed(const std::string &text);
    // The default for matrices that are not in the table; null if ggml is to multiply.
    std::optional<BatchPlan> find(ArrangedType type, int64_t n_in, int64_t n_out, bool is_of_expert = false) const;

  private:
    std::map<std::tuple<ArrangedType, int64_t, int64_t, bool>, std::optional<BatchPlan>> plans_;
};

class BatchMatrices {
  public:
    // A matrix on the device, and its rows in host memory, in one or several parts; or a stack of experts' matrices.
    struct Source {
        ggml_tensor *matrix;
        std::vector<Tensor> parts;
        bool is_stack() const { return parts.front().shape().size() == 3; }
    };
    // Arranges and uploads what the device can multiply so; nothing if QUIRE_BATCH_PRODUCTS is not set.
    void arrange(const Backend &backend, const std::vector<Source> &sources);
    struct Arranged {
        Tensor tensor; // i8
        BatchProduct params; // for a stack: those of one matrix
    };
    const Arranged *find(const ggml_tensor *matrix) const;
    size_t size_bytes() const { return size_bytes_; }

  private:
    std::map<const ggml_tensor *, Arranged> arranged_;
    size_t size_bytes_ = 0;
};

} // namespace quire
