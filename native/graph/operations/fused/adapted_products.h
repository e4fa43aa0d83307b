// The additions of adapters to products of the same activations, and to lookups.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "graph/cpu/cpu_program.h"
#include "graph/cpu/row_norm.h"
#include "kernels/rows/row_kernels.h"

namespace quire {

// The steps that a row still needs before it is multiplied: a norm, an activation, or neither.
struct RowStep {
    std::optional<RowNorm> norm;
    std::optional<Activation> activation;
    explicit operator bool() const { return norm || activation; }
    void apply(const RowKernels &kernels, const float *x, float *out, int64_t n) const {
        if (norm) return kernels.rms_norm(x, norm->weight, norm->eps, out, n);
        kernels.activate(*activation, x, out, n);
    }
};

// A product W x or a lookup that has been computed.
struct AdaptedProduct {
    const Weight *weight;
    const float *x; // before the step
    const RowStep *step;
    float *out; // [n_rows, n_out]
    const int32_t *ids = nullptr; // for a lookup, in place of x and step
};

// The work of one step: A x may be computed beside the products, then B (A x) is added to them.  A row's bits depend on that
// row, its adapters and their scales alone.
class AdapterSums {
  public:
    // `products`: of the same activations.  Refers to its arguments.
    AdapterSums(const CpuRun &run, Lead lead, std::span<const AdaptedProduct> products);
    ~AdapterSums();
    bool empty() const { return works_.empty(); }
    // Items of A x, for any thread and in any order.
    int n_items() const { return static_cast<int>(item_ends_.size()); }
    void multiply_by_a(int item) const;
    // Adds scale * factor * B (A x), when all items and the products are done.
    void add() const;
    // DoRA changes rows, [i]: of product i.  To them biases and residuals are added after add(), not before.
    bool has_lengths() const { return has_lengths_; }
    bool changes_lengths(size_t product, int row) const;
    size_t cost_bytes() const { return cost_bytes_; }

  private:
    struct Work;
    void add_level(const AdapterRows &rows, std::span<const AdaptedProduct> products);
    void add_part(const Work &work, int part) const;
    const CpuRun &run_;
    std::vector<Work> works_; // one product for one chunk of rows each
    std::span<const AdaptedProduct> products_;
    std::vector<size_t> item_ends_, level_ends_; // in works_: an item has those of a chunk
    bool has_lengths_ = false;
    size_t h_bytes_ = 0, cost_bytes_ = 0;
    uint8_t *h_ = nullptr; // the rows of A x, in the form that B reads
};

} // namespace quire
