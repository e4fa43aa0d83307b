#include "bindings/bindings.h"

namespace quire::bindings {

void bind_graph(pybind11::module_ &) {}

} // namespace quire::bindings
