// What a model keeps per token, and how a pool of blocks lays it out.  Sizes only; the memory is kv_store's.
//
// Layout: a block holds the K and V of `block_tokens` tokens in every layer.  Per layer there is one K array of
// [n_blocks, n_kv_head] times block_tokens * head_dim values and one V array of as many times block_tokens * v_head_dim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/dtype.h"

namespace quire {

inline constexpr int default_block_tokens = 32;

struct KvLayer {
    int n_kv_head = 0;
    int head_dim = 0;
    int v_head_dim = 0;
    std::optional<int> window; // the last `window` tokens are attended to; none: all of them
};

class KvSpec {
  public:
    // ShapeError when a size is not positive or the dtype cannot hold a head's row.
    KvSpec(DType dtype, std::vector<KvLayer> layers, int block_tokens = default_block_tokens);
    DType dtype() const { return dtype_; }
    const std::vector<KvLayer> &layers() const { return layers_; }
    int block_tokens() const { return block_tokens_; }

    size_t k_block_bytes(size_t layer) const;
    size_t v_block_bytes(size_t layer) const;
    size_t block_bytes() const { return block_bytes_; } // one block in all layers
    size_t token_bytes() const { return block_bytes_ / static_cast<size_t>(block_tokens_); }
    size_t pool_bytes(int64_t n_blocks) const; // CapacityError when that overflows
    int64_t blocks_for_tokens(int64_t n_tokens) const { return (n_tokens + block_tokens_ - 1) / block_tokens_; }
    int64_t blocks_in_bytes(size_t size_bytes) const { return static_cast<int64_t>(size_bytes / block_bytes_); }

  private:
    const KvLayer &layer(size_t index) const;
    DType dtype_;
    std::vector<KvLayer> layers_;
    int block_tokens_;
    size_t block_bytes_ = 0;
};

} // namespace quire
