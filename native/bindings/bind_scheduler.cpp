#include "bindings/bindings.h"

namespace quire::bindings {

void bind_scheduler(pybind11::module_ &) {}

} // namespace quire::bindings
