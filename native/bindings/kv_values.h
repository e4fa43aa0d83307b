// Hashes and options of the cache's accounting as Python has them.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "bindings/named.h"
#include "core/error.h"
#include "kv/block_pool.h"
#include "kv/prefix_hash.h"

namespace quire::bindings {

inline pybind11::bytes to_bytes(const PrefixHash &hash) {
    return pybind11::bytes(reinterpret_cast<const char *>(hash.bytes.data()), hash.bytes.size());
}

inline PrefixHash to_hash(const pybind11::bytes &bytes) {
    const std::string_view view = bytes;
    PrefixHash hash;
    if (view.size() != hash.bytes.size())
        throw ShapeError("prefix_hash", cat("a block's hash has ", view.size(), " bytes: expected 32"));
    std::copy(view.begin(), view.end(), hash.bytes.begin());
    return hash;
}

inline BlockReuse reuse_named(const std::string &name) {
    static constexpr Named<BlockReuse> names[] = {{"by_age", BlockReuse::by_age},
                                                  {"by_address", BlockReuse::by_address}};
    return parse("block_pool", "reuse", name, names);
}

} // namespace quire::bindings
