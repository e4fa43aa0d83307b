// Exchange of arrays by DLPack (specification: data-apis array API, dlpack.h version 1.0).
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

#include "core/tensor.h"

namespace quire::bindings {

// A capsule "dltensor", or "dltensor_versioned" when the consumer's max_version is 1 or above.  Read-only memory can
// only be told by the versioned form.
pybind11::capsule tensor_to_dlpack(const Tensor &tensor, const pybind11::object &stream,
                                   const pybind11::object &max_version, const pybind11::object &device,
                                   std::optional<bool> copy);
// Anything with __dlpack__, or a capsule; no copy.
Tensor tensor_from_dlpack(const pybind11::object &source);

} // namespace quire::bindings
