#include "bindings/bindings.h"

namespace quire::bindings {

void bind_quant(pybind11::module_ &) {}

} // namespace quire::bindings
