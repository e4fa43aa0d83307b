// NumPy arrays of mask words.
#pragma once

#include <cstdint>
#include <pybind11/numpy.h>
#include <vector>

#include "core/error.h"

namespace quire::bindings {

using MaskWords = pybind11::array_t<uint32_t, pybind11::array::c_style>;

inline std::vector<uint32_t> words_of(const MaskWords &mask) {
    if (mask.ndim() != 1) throw ShapeError("token_mask", cat("a mask has ", mask.ndim(), " dimensions: expected 1"));
    return {mask.data(), mask.data() + mask.size()};
}

} // namespace quire::bindings
