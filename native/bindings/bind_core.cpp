#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core/device.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/module_file.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

DType dtype_named(const std::string &text) {
    if (auto found = dtype_from_name(text)) return *found;
    std::string names;
    for (DType dtype : all_dtypes()) names += (names.empty() ? "" : ", ") + name(dtype);
    // The text comes last: Python cuts a message at a NUL.
    throw UnsupportedError("dtype", cat("unknown dtype: expected one of ", names, ", not '", text, "'"));
}

std::string device_kind_name(DeviceKind kind) {
    switch (kind) {
    case DeviceKind::cpu: return "cpu";
    case DeviceKind::gpu: return "gpu";
    case DeviceKind::integrated_gpu: return "integrated_gpu";
    default: return "accelerator";
    }
}

} // namespace

void bind_core(py::module_ &m) {
    py::class_<DType> dtype(m, "DType");
    dtype.def(py::init(&dtype_named), py::arg("name"))
        .def_static("all", [] { return all_dtypes(); })
        .def_static("from_id",
                    [](int64_t id) {
                        if (auto found = dtype_from_id(id)) return *found;
                        throw UnsupportedError("dtype", cat("unknown dtype number ", id));
                    })
        .def_property_readonly("id", [](DType self) { return static_cast<int>(self); })
        .def_property_readonly("name", [](DType self) { return name(self); })
        .def_property_readonly("block_size", &block_size)
        .def_property_readonly("block_bytes", &block_bytes)
        .def_property_readonly("is_quantized", &is_quantized)
        .def("row_bytes", &row_bytes, py::arg("n"))
        .def("__repr__", [](DType self) { return "DType(\"" + name(self) + "\")"; })
        .def("__str__", [](DType self) { return name(self); })
        .def("__hash__", [](DType self) { return static_cast<int>(self); })
        .def("__eq__", [](DType self, const py::object &other) {
            if (py::isinstance<py::str>(other)) return dtype_from_name(other.cast<std::string>()) == self;
            return py::isinstance<DType>(other) && other.cast<DType>() == self;
        });
    py::implicitly_convertible<py::str, DType>();
    for (DType value : all_dtypes()) m.attr("DType").attr(name(value).c_str()) = value;

    py::class_<Device>(m, "Device")
        .def_property_readonly("name", &Device::name)
        .def_property_readonly("description", &Device::description)
        .def_property_readonly("backend", &Device::backend)
        .def_property_readonly("kind", [](const Device &self) { return device_kind_name(self.kind()); })
        .def_property_readonly("memory_free_bytes", &Device::memory_free_bytes)
        .def_property_readonly("memory_total_bytes", &Device::memory_total_bytes)
        .def_property_readonly("operations", &Device::operations)
        .def_property_readonly("features", &Device::features)
        .def(
            "dtypes",
            [](const Device &self, const std::string &operation) {
                std::vector<std::string> names;
                for (DType dtype : self.dtypes(operation)) names.push_back(name(dtype));
                return names;
            },
            py::arg("operation"))
        .def("__eq__",
             [](const Device &self, const py::object &other) {
                 return py::isinstance<Device>(other) && other.cast<Device>() == self;
             })
        .def("__hash__", [](const Device &self) { return std::hash<const void *>{}(self.handle()); })
        .def("__repr__", [](const Device &self) { return "Device(\"" + self.name() + "\")"; });
    m.def("devices", &devices);
    m.def("find_device", [](const std::string &wanted) { return find_device(wanted); }, py::arg("name"));
    m.def(
        "load_backend",
        [](const std::string &path) {
            load_cpu_backend();
            py::gil_scoped_release unlocked; // drivers take their time
            load_backend(path);
        },
        py::arg("path"));
    m.def("check_module_file", [](const std::string &path) { check_module_file(path); }, py::arg("path"));
    m.def("module_version", &module_version);
}

} // namespace quire::bindings
