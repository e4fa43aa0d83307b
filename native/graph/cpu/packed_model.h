// The matrices of a model in the layout that our own products read, made once when the model is loaded.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/cpu/packed_cache.h"
#include "graph/trace/trace.h"
#include "kernels/kernel_set.h"
#include "kernels/matmul/packed_weights.h"

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
// F16 becomes BF16 where the kernels multiply that.  UnsupportedError where there is no layout, CapacityError when memory does not suffice.
PackedTensor pack(const KernelSet &kernels, const Tensor &tensor, Repack repack, int n_threads);

class PackedModel {
  public:
    // Packs every matrix that a product, a table look-up or experts of the trace read, where there is a layout for it.
    // CapacityError when memory does not suffice.  With a cache the packed matrices come from its file where there is one
    // for them, and are written to one where there is none.
    // `others`: a model for the same kernels, whose packed matrices are shared where this one reads them; may be null.
    PackedModel(const KernelSet &kernels, const Trace &trace, Repack repack, int n_threads,
                const std::optional<PackedCacheOptions> &cache = std::nullopt, const PackedModel *others = nullptr);

    // The packed form, or null.
    const PackedWeights *find(const WeightRef &weight) const;
    size_t size_bytes() const { return size_bytes_; } // without what is shared
    bool from_cache() const { return from_cache_; }
    const std::vector<std::string> &cache_notes() const { return cache_notes_; } // what went wrong with the cache

  private:
    PackedWeights form_of(const WeightRef &weight) const;
    void pack_all(const std::vector<WeightRef> &weights, Repack repack, int n_threads, PackedCache *cache);
    void take(const WeightRef &weight, PackedTensor packed);
    KernelSet kernels_;
    std::set<const Weight *> tables_; // never multiplied, and so never rounded
    std::map<const Weight *, PackedTensor> matrices_;
    size_t size_bytes_ = 0;
    bool from_cache_ = false;
    std::vector<std::string> cache_notes_;
};

} // namespace quire
