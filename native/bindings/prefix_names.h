// A text whose blocks are saved or restored, as Python gives it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/decoding/prefix_text.h"

namespace quire::bindings {

using MediaNames = std::vector<std::tuple<int64_t, int64_t, pybind11::bytes>>;
using LateNames = std::vector<std::pair<pybind11::bytes, int64_t>>;

inline PrefixText prefix_text(std::vector<int32_t> tokens, std::string salt, std::string adapter, const LateNames &late,
                              const MediaNames &media) {
    PrefixText text{std::move(tokens), {std::move(adapter), {}, std::move(salt)}, {}};
    for (const auto &[name, first] : late) text.context.late.push_back({std::string(name), first});
    for (const auto &[begin, end, digest] : media) text.media.push_back({begin, end, std::string(digest)});
    return text;
}

} // namespace quire::bindings
