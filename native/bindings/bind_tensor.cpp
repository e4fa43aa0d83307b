#include "bindings/bindings.h"

namespace quire::bindings {

void bind_tensor(pybind11::module_ &) {}

} // namespace quire::bindings
