#include "bindings/bindings.h"

namespace quire::bindings {

void bind_gguf(pybind11::module_ &) {}

} // namespace quire::bindings
