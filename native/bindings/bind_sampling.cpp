#include "bindings/bindings.h"

namespace quire::bindings {

void bind_sampling(pybind11::module_ &) {}

} // namespace quire::bindings
