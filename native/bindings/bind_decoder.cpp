#include "bindings/bindings.h"

namespace quire::bindings {

void bind_decoder(pybind11::module_ &) {}

} // namespace quire::bindings
