#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core/error.h"
#include "kernels/isa.h"

namespace quire::bindings {
namespace py = pybind11;

void bind_kernels(py::module_ &m) {
    m.def("isa", [] { return isa_name(isa()); });
    m.def("supported_isas", [] {
        std::vector<std::string> names;
        for (Isa one : supported_isas()) names.push_back(isa_name(one));
        return names;
    });
    m.def("force_isa",
          [](const std::string &name) {
              for (Isa one : supported_isas()) {
                  if (isa_name(one) == name) return static_cast<void>(force_isa(one));
              }
              throw UnsupportedError("kernels", cat("the instruction set must be one this machine has but is '", name, "'"));
          },
          py::arg("name"));
}

} // namespace quire::bindings
