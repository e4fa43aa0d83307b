#include "kv/kv_spec.h"

#include <limits>
#include <utility>

#include "core/error.h"
#include "kv/cache_spec.h"

namespace quire {

KvSpec::KvSpec(DType dtype, std::vector<KvLayer> layers, int block_tokens)
    : dtype_(dtype), layers_(std::move(layers)), block_tokens_(block_tokens) {
    if (block_tokens < 1) throw ShapeError("kv_spec", cat("block_tokens must be positive but is ", block_tokens));
    if (layers_.empty()) throw ShapeError("kv_spec", "a model must have at least one layer but has none");
    for (size_t i = 0; i < layers_.size(); ++i) {
        const KvLayer &l = layers_[i];
        if (l.n_kv_head < 1 || l.head_dim < 1 || l.v_head_dim < 1 || (l.window && *l.window < 1))
            throw ShapeError("kv_spec",
                             cat("sizes must be positive but layer ", i, " has n_kv_head ", l.n_kv_head, ", head_dim ",
                                 l.head_dim, ", v_head_dim ", l.v_head_dim, ", window ", l.window.value_or(0)));
        block_bytes_ += k_block_bytes(i) + v_block_bytes(i);
    }
}

const KvLayer &KvSpec::layer(size_t index) const {
    if (index >= layers_.size())
        throw ShapeError("kv_spec", cat("layer must be below ", layers_.size(), " but is ", index));
    return layers_[index];
}

size_t KvSpec::k_block_bytes(size_t index) const {
    const KvLayer &l = layer(index);
    return cache_head_bytes(dtype_, l.head_dim, block_tokens_) * static_cast<size_t>(l.n_kv_head);
}

size_t KvSpec::v_block_bytes(size_t index) const {
    const KvLayer &l = layer(index);
    return cache_head_bytes(dtype_, l.v_head_dim, block_tokens_) * static_cast<size_t>(l.n_kv_head);
}

size_t KvSpec::pool_bytes(int64_t n_blocks) const {
    if (n_blocks < 0 || static_cast<uint64_t>(n_blocks) > std::numeric_limits<int64_t>::max() / block_bytes_)
        throw CapacityError("kv_spec", cat("a pool must fit into memory but would have ", n_blocks, " blocks of ",
                                           block_bytes_, " bytes"));
    return static_cast<size_t>(n_blocks) * block_bytes_;
}

} // namespace quire
