#include "bindings/bindings.h"
#include "core/error.h"

namespace quire::bindings {
namespace py = pybind11;

void bind_errors() {
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) std::rethrow_exception(pointer);
        } catch (const Error &error) {
            // In the order of ErrorKind; a test compares the two lists.
            static const char *const classes[n_error_kinds] = {"LoadError",     "ShapeError",   "UnsupportedError",
                                                               "CapacityError", "RequestError", "InternalError",
                                                               "DeviceError"};
            py::object type = py::module_::import("quire.errors").attr(classes[static_cast<int>(error.kind())]);
            PyErr_SetString(type.ptr(), error.what());
        }
    });
}

} // namespace quire::bindings
