// The bytes of the paged KV cache: for every layer an array of K and one of V, each [n_blocks][n_kv_head] of the tokens
// of a block.  How those lie there is a matter of whoever writes and reads them: the stock lowering keeps rows, our own
// kernels K by dimension (kernels/paged_attention.h).
#pragma once

#include <memory>
#include <vector>

#include "core/tensor.h"

namespace quire {

inline constexpr int kv_store_block_tokens = 32;

struct KvLayerSpec {
    int n_kv_head, head_dim, v_head_dim;
};

// Fixed in place once made.  All bytes are zero at first, so that no block ever holds what is not a number.
class KvStore {
  public:
    // The tensors are seen as matrices [n_blocks * n_kv_head * block_tokens, head_dim]: to the stock lowering a row is one
    // token of one head.
    struct Layer {
        Tensor k, v;
        size_t k_block_bytes, v_block_bytes;
    };
    KvStore(const std::vector<KvLayerSpec> &layers, DType dtype, int n_blocks, Device device);
    static size_t bytes_per_block(const std::vector<KvLayerSpec> &layers, DType dtype);

    const Layer &layer(int i) const { return layers_[static_cast<size_t>(i)]; }
    int n_blocks() const { return n_blocks_; }
    DType dtype() const { return dtype_; }
    size_t size_bytes() const { return buffer_->size_bytes(); }
    void copy_block(int from, int to) const;

  private:
    DType dtype_;
    int n_blocks_;
    std::shared_ptr<Buffer> buffer_;
    std::vector<Layer> layers_;
};

} // namespace quire
