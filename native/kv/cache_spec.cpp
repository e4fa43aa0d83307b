#include "kv/cache_spec.h"

#include <map>
#include <utility>

#include "core/error.h"
#include "core/q8_layout.h"

namespace quire {
namespace {

void check(const CacheSpec &spec, size_t layer) {
    if (spec.rows) {
        const CacheRows &r = *spec.rows;
        if (r.n_kv_head < 1 || r.head_dim < 1 || r.v_head_dim < 1 || r.window < 0 || r.chunk < 0)
            throw ShapeError("cache", cat("sizes must be positive but layer ", layer, " has n_kv_head ", r.n_kv_head,
                                          ", head_dim ", r.head_dim, ", v_head_dim ", r.v_head_dim, ", window ",
                                          r.window, ", chunk ", r.chunk));
        if (r.window > 0 && r.chunk > 0)
            throw ShapeError("cache", cat("a layer must have a window or chunks but layer ", layer, " has both"));
        if (r.of_source && (r.window > 0 || r.chunk > 0 || r.v_in_k))
            throw ShapeError("cache", cat("rows of the source must be attended to as a whole, and keep an array of "
                                          "values, but not those of layer ",
                                          layer));
        if (r.v_in_k && (r.n_kv_head != 1 || r.v_head_dim > r.head_dim))
            throw ShapeError("cache", cat("values must be a part of the keys of one head but layer ", layer, " has ",
                                          r.n_kv_head, " heads of ", r.head_dim, " and values of ", r.v_head_dim));
    }
    for (const CacheState &state : spec.states)
        if (state.n < 1)
            throw ShapeError("cache",
                             cat("state ", state.name, " of layer ", layer, " must have numbers but has ", state.n));
}

} // namespace

size_t cache_head_bytes(DType dtype, int head_dim, int n_tokens) {
    if (dtype == DType::q8_0) return q8_head_bytes(head_dim, n_tokens);
    return row_bytes(dtype, head_dim) * static_cast<size_t>(n_tokens);
}

CacheLayout::CacheLayout(std::vector<CacheSpec> layers, DType dtype, int block_tokens)
    : layers_(std::move(layers)), dtype_(dtype), block_tokens_(block_tokens) {
    if (block_tokens < 1) throw ShapeError("cache", cat("block_tokens must be positive but is ", block_tokens));
    std::map<CacheLifetime, CacheGroup> by_lifetime;
    for (size_t i = 0; i < layers_.size(); ++i) {
        check(layers_[i], i);
        const int layer = static_cast<int>(i);
        for (const CacheState &state : layers_[i].states) state_bytes_ += static_cast<size_t>(state.n) * sizeof(float);
        if (!layers_[i].rows) continue;
        const CacheLifetime lifetime = layers_[i].rows->lifetime();
        CacheGroup &group = by_lifetime[lifetime];
        group.lifetime = lifetime;
        group.layers.push_back(layer);
        group.block_bytes += k_block_bytes(layer) + v_block_bytes(layer);
    }
    for (auto &[lifetime, group] : by_lifetime) groups_.push_back(std::move(group));
}

std::optional<int> CacheLayout::group_of(int layer) const {
    const std::optional<CacheRows> &rows = layers_.at(static_cast<size_t>(layer)).rows;
    if (!rows) return std::nullopt;
    for (size_t g = 0; g < groups_.size(); ++g)
        if (groups_[g].lifetime == rows->lifetime()) return static_cast<int>(g);
    throw InternalError("cache", cat("layer ", layer, " must be in a group but is in none"));
}

std::optional<int> CacheLayout::source_group() const {
    for (size_t g = 0; g < groups_.size(); ++g)
        if (groups_[g].lifetime.of_source) return static_cast<int>(g);
    return std::nullopt;
}

size_t CacheLayout::block_bytes() const {
    size_t sum = 0;
    for (const CacheGroup &group : groups_) sum += group.block_bytes;
    return sum;
}

size_t CacheLayout::k_block_bytes(int layer) const {
    const CacheRows &rows = layers_.at(static_cast<size_t>(layer)).rows.value();
    return cache_head_bytes(dtype_, rows.head_dim, block_tokens_) * static_cast<size_t>(rows.n_kv_head);
}

size_t CacheLayout::v_block_bytes(int layer) const {
    const CacheRows &rows = layers_.at(static_cast<size_t>(layer)).rows.value();
    if (rows.v_in_k) return 0;
    return cache_head_bytes(dtype_, rows.v_head_dim, block_tokens_) * static_cast<size_t>(rows.n_kv_head);
}

} // namespace quire
