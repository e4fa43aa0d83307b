// The matrices of a model in the layout that Quire's own products read, packed once when the model is loaded.
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

// How matrices are packed, and what becomes of the memory that they were read from.
enum class Repack {
    no,
    keep,   // somebody else may read it
    release, // its pages are given back to the system while packing goes on: nobody reads them again
    lock     // like keep, and the packed form is locked in memory
};

// A matrix in tiles, with its memory.
struct PackedTensor {
    std::shared_ptr<uint8_t> memory;
    PackedWeights weights;
};

// True if there is a layout for the tensor: a matrix, or several of one shape, [n, n_out, n_in], which are packed as
// one of n * n_out rows.
bool can_pack(const Tensor &tensor);
// F16 becomes BF16 if the kernels multiply that.  UnsupportedError without a layout, CapacityError without enough
// memory.
PackedTensor pack(const KernelSet &kernels, const Tensor &tensor, Repack repack, int n_threads);

class PackedModel {
  public:
    // Packs every matrix that a product, a table look-up or experts of the trace read, if there is a layout for it.
    // CapacityError without enough memory.  With a cache, packed matrices come from its file if there is one for
    // them, and are written to one if there is none.
    // `others`: a model for the same kernels; matrices that both read are shared.  May be null.
    PackedModel(const KernelSet &kernels, const Trace &trace, Repack repack, int n_threads,
                const std::optional<PackedCacheOptions> &cache = std::nullopt, const PackedModel *others = nullptr);

    // The packed form, or null.
    const PackedWeights *find(const WeightRef &weight) const;
    size_t size_bytes() const { return size_bytes_; } // without what is shared
    bool from_cache() const { return from_cache_; }
    const std::vector<std::string> &cache_notes() const { return cache_notes_; } // problems with the cache

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
