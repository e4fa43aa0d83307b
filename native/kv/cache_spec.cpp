#include "kv/cache_spec.h"

#include <map>
#include <utility>

#include "core/error.h"
#include "core/q8_layout.h"

namespace quire {
namespace {

void check_spec(const CacheSpec &spec, size_t layer) {
    if (spec.rows) {
        const CacheRows &r = *spec.rows;
        if (r.n_kv_head < 1 || r.head_dim < 1 || r.v_head_dim < 1 || r.window < 0 || r.chunk < 0)
            throw ShapeError("cache", cat("layer ", layer, " has n_kv_head ", r.n_kv_head, ", head_dim ", r.head_dim,
                                          ", v_head_dim ", r.v_head_dim, ", window ", r.window, ", chunk ", r.chunk,
                                          ": expected positive sizes"));
        if (r.window > 0 && r.chunk > 0)
            throw ShapeError("cache", cat("layer ", layer, " has both a window and chunks"));
        if (r.of_source && (r.window > 0 || r.chunk > 0 || r.v_in_k))
            throw ShapeError(
                "cache",
                cat("layer ", layer,
                    " keeps rows of the source with a window, chunks or values within keys, which is unsupported"));
        if (r.bidirectional_media && (r.of_source || r.chunk > 0))
            throw ShapeError("cache", cat("layer ", layer, " has bidirectional media with ",
                                          r.of_source ? "rows of the source" : "chunks", ", which is unsupported"));
        if (r.every < 1 || (kv_block_tokens % r.every != 0 && r.every % kv_block_tokens != 0) ||
            (r.every > 1 && (r.window > 0 || r.chunk > 0 || r.of_source || r.bidirectional_media)))
            throw ShapeError("cache", cat("layer ", layer, " keeps a row of every ", r.every,
                                          " tokens: expected a divisor or a multiple of ", kv_block_tokens,
                                          ", and rows of all tokens"));
        if (r.v_in_k && (r.n_kv_head != 1 || r.v_head_dim > r.head_dim))
            throw ShapeError("cache",
                             cat("layer ", layer, " has ", r.n_kv_head, " heads of ", r.head_dim, " and values of ",
                                 r.v_head_dim, ": values within keys need one head that is as long"));
    }
    for (const CacheState &state : spec.states)
        if (state.n < 1)
            throw ShapeError("cache", cat("state ", state.name, " of layer ", layer, " has ", state.n,
                                          " numbers: expected 1 or more"));
}

// A layer's rows, as far as the types are concerned.
void check_types(const CacheRows &rows, CacheTypes types, size_t layer) {
    for (const auto &[dtype, dim] : {std::pair(types.k, rows.head_dim), std::pair(types.v, rows.v_head_dim)})
        if (dtype != DType::q8_0 && dim % block_size(dtype) != 0)
            throw ShapeError("cache", cat("heads of layer ", layer, " have ", dim, " numbers: a cache of ", name(dtype),
                                          " needs a multiple of ", block_size(dtype)));
    if (rows.v_in_k && types.k != types.v)
        throw ShapeError(
            "cache", cat("K and V are ", name(types), " in layer ", layer, ": expected one type, as V is a part of K"));
}

DType cache_type_from_name(const std::string &text, const std::string &whole) {
    for (DType dtype : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q5_1, DType::q4_0})
        if (text == name(dtype)) return dtype;
    throw UnsupportedError("cache",
                           cat("kv_dtype is '", whole,
                               "': expected one of f32, f16, bf16, q8_0, q5_1, q4_0, or two of them as in q8_0/q4_0"));
}

} // namespace

bool CacheTypes::are_coded() const { return is_quantized(k) || is_quantized(v); }

CacheTypes cache_types_from_name(const std::string &text) {
    const size_t slash = text.find('/');
    const DType k = cache_type_from_name(text.substr(0, slash), text);
    if (slash == std::string::npos) return k;
    const CacheTypes types(k, cache_type_from_name(text.substr(slash + 1), text));
    auto goes_with_others = [](DType dtype) { return dtype != DType::f32 && dtype != DType::bf16; };
    if (types.k != types.v && !(goes_with_others(types.k) && goes_with_others(types.v)))
        throw UnsupportedError(
            "cache", cat("K and V cannot be '", text, "': expected one type, or two of f16, q8_0, q5_1, q4_0"));
    return types;
}

std::string name(CacheTypes types) {
    return types.k == types.v ? name(types.k) : cat(name(types.k), "/", name(types.v));
}

size_t cache_head_bytes(DType dtype, int head_dim, int n_tokens) {
    if (dtype == DType::q8_0) return q8_head_bytes(head_dim, n_tokens);
    return row_bytes(dtype, head_dim) * static_cast<size_t>(n_tokens);
}

CacheLayout::CacheLayout(std::vector<CacheSpec> layers, CacheTypes types, int block_tokens)
    : layers_(std::move(layers)), types_(types), block_tokens_(block_tokens) {
    if (block_tokens < 1)
        throw ShapeError("cache", cat("block_tokens is ", block_tokens, ": expected a positive number"));
    std::map<CacheLifetime, CacheGroup> by_lifetime;
    for (size_t i = 0; i < layers_.size(); ++i) {
        check_spec(layers_[i], i);
        const int layer = static_cast<int>(i);
        for (const CacheState &state : layers_[i].states) state_bytes_ += static_cast<size_t>(state.n) * sizeof(float);
        if (!layers_[i].rows) continue;
        check_types(*layers_[i].rows, types_, i);
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
    throw InternalError("cache", cat("layer ", layer, " is in no group"));
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
    return cache_head_bytes(types_.k, rows.head_dim, rows.block_rows(block_tokens_)) *
           static_cast<size_t>(rows.n_kv_head);
}

size_t CacheLayout::v_block_bytes(int layer) const {
    const CacheRows &rows = layers_.at(static_cast<size_t>(layer)).rows.value();
    if (rows.v_in_k) return 0;
    return cache_head_bytes(types_.v, rows.v_head_dim, rows.block_rows(block_tokens_)) *
           static_cast<size_t>(rows.n_kv_head);
}

} // namespace quire
