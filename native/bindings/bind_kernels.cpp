#include "bindings/bindings.h"

namespace quire::bindings {

void bind_kernels(pybind11::module_ &) {}

} // namespace quire::bindings
