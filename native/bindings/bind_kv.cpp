#include "bindings/bindings.h"

namespace quire::bindings {

void bind_kv(pybind11::module_ &) {}

} // namespace quire::bindings
