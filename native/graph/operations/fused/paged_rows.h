// Operations on rows of the cache that are stored whole (kernels/attention/row_pool.h): a row of the step at a time, by
// the same kernel in CPU programs and in ggml's graphs on the CPU.  Devices lack them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "graph/cpu/cpu_lowering.h"
#include "graph/stock/stock_parts.h"
#include "kernels/attention/row_pool.h"

namespace quire {

struct PagedStep {
    std::span<const AttentionBatch> groups; // by group of the cache
    std::span<const float *const> inputs;
    float *out;

    // Where a row of the step is in its sequence and in a group.
    struct Place {
        int32_t position;
        const int32_t *table;
        int32_t slot;
    };
    Place place(int group, int row) const;
};

class PagedKernel {
  public:
    virtual ~PagedKernel() = default;
    virtual int n_parts() const { return 1; } // different threads may run the parts of a row
    virtual void run(const PagedStep &step, int row, int part) const = 0;
};

// A layer whose rows are stored whole.
struct PagedLayer {
    int group;
    RowPool k, v; // v.data is null where V is in K
    // UnsupportedError if the types of the cache are coded.
    static PagedLayer of(const char *place, const KvStore &store, int layer);
};

// The parts of an operation: first each input that a layer keeps is written, then the kernel runs.
struct PagedWrite {
    size_t input;
    int group;
    RowPool pool;
};
struct PagedOperation {
    std::vector<PagedWrite> writes;
    std::shared_ptr<const PagedKernel> kernel;
};
void add_paged_nodes(CpuLowering &lowering, int i, const PagedOperation &operation);
ggml_tensor *lower_paged(const StockParts &parts, const PagedOperation &operation);
// `written`: the tensors of what must be in the cache before.
ggml_tensor *lower_paged(const StockParts &parts, const std::shared_ptr<const PagedKernel> &kernel,
                         const std::vector<ggml_tensor *> &written);

// As pick(), where the layer's rows are shared by tokens.
TraceTensor pick_compressed(const TraceTensor &q, const TraceTensor &k, const TraceTensor &weights,
                            const PickSpec &spec);

} // namespace quire
