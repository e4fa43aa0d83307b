#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstring>
#include <variant>

#include "bindings/bindings.h"
#include "bindings/dlpack.h"
#include "core/error.h"
#include "core/tensor.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

// NumPy's type for a tensor's storage: bf16 as its bits (NumPy has no bf16), quantized types as bytes.
py::dtype storage_type(DType dtype) {
    switch (dtype) {
    case DType::f32: return py::dtype("f4");
    case DType::f16: return py::dtype("f2");
    case DType::f64: return py::dtype("f8");
    case DType::i8: return py::dtype("i1");
    case DType::i16: return py::dtype("i2");
    case DType::i32: return py::dtype("i4");
    case DType::i64: return py::dtype("i8");
    case DType::bf16: return py::dtype("u2");
    default: return py::dtype("u1");
    }
}

std::vector<py::ssize_t> storage_shape(const Tensor &tensor) {
    std::vector<py::ssize_t> shape(tensor.shape().begin(), tensor.shape().end());
    if (is_quantized(tensor.dtype()))
        shape.back() = static_cast<py::ssize_t>(row_bytes(tensor.dtype(), tensor.shape().back()));
    return shape;
}

DType natural_dtype(const py::array &array) {
    static const DType candidates[] = {DType::f32, DType::f16, DType::f64, DType::i8,
                                       DType::i16, DType::i32, DType::i64};
    for (DType dtype : candidates) {
        if (array.dtype().equal(storage_type(dtype))) return dtype;
    }
    throw ShapeError("tensor", cat("an array is ", py::str(array.dtype()).cast<std::string>(),
                                   ": expected f32, f16, f64 or i8 to i64 (raw storage needs dtype)"));
}

// The logical shape of storage: a quantized row of bytes stands for its elements.
Shape logical_shape(const py::array &array, DType dtype) {
    if (!array.dtype().equal(storage_type(dtype))) {
        throw ShapeError("tensor", cat("storage of ", name(dtype), " is ", py::str(array.dtype()).cast<std::string>(),
                                       ": expected ", py::str(storage_type(dtype)).cast<std::string>()));
    }
    if (array.ndim() < 1) throw ShapeError("tensor", "the array has 0 dimensions: expected 1 to 4");
    Shape shape(array.shape(), array.shape() + array.ndim());
    if (is_quantized(dtype)) {
        auto bytes = static_cast<int64_t>(block_bytes(dtype));
        if (shape.back() % bytes != 0)
            throw ShapeError("tensor", cat("a row of ", name(dtype), " has ", shape.back(),
                                           " bytes: expected a multiple of ", bytes));
        shape.back() = shape.back() / bytes * block_size(dtype);
    }
    return shape;
}

Tensor from_numpy(const py::array &array, std::optional<DType> wanted, std::optional<bool> copy) {
    DType dtype = wanted ? *wanted : natural_dtype(array);
    Shape shape = logical_shape(array, dtype);
    bool dense = (array.flags() & py::array::c_style) != 0;
    if (!dense && copy == false)
        throw ShapeError("tensor", "the array is not contiguous, so it cannot be used without copying");
    if (!dense || copy == true) {
        py::array packed = py::array::ensure(array, py::array::c_style);
        Tensor tensor = Tensor::empty(dtype, shape, find_device("CPU"));
        tensor.copy_from_host(packed.data(), static_cast<size_t>(packed.nbytes()));
        return tensor;
    }
    shape_bytes(dtype, shape); // a sound shape, before the memory is borrowed
    // The array lives until the last tensor over it goes, which may be on a thread without the GIL.
    std::shared_ptr<void> owner(new py::array(array), [](void *p) {
        py::gil_scoped_acquire acquire;
        delete static_cast<py::array *>(p);
    });
    auto *data = const_cast<void *>(array.data());
    auto buffer = Buffer::borrow(data, static_cast<size_t>(array.nbytes()), !array.writeable(), std::move(owner));
    return Tensor::in_buffer(dtype, shape, buffer, static_cast<size_t>(static_cast<uint8_t *>(data) - buffer->base()));
}

py::array to_numpy(const Tensor &self) {
    // The capsule keeps the memory as long as the view lives.
    py::capsule owner(new Tensor(self), [](void *p) { delete static_cast<Tensor *>(p); });
    py::array view(storage_type(self.dtype()), storage_shape(self), self.data(), owner);
    if (self.buffer()->read_only()) view.attr("setflags")(py::arg("write") = false);
    return view;
}

using DeviceOrName = std::variant<std::string, Device>;

Device device_of(const DeviceOrName &wanted) {
    if (const auto *device = std::get_if<Device>(&wanted)) return *device;
    const auto &name = std::get<std::string>(wanted);
    if (name == "cpu" || name == "CPU") return find_device("CPU");
    // Modules are looked for in Python, which has a process to try them in.
    return py::module_::import("quire.hardware").attr("find_device")(name).cast<Device>();
}

// NumPy's protocol: `copy` False must not copy.
py::object to_array(const Tensor &self, const py::object &dtype, std::optional<bool> copy) {
    py::object array = to_numpy(self);
    if (dtype.is_none() || py::dtype::from_args(dtype).equal(array.attr("dtype"))) {
        return copy == true ? array.attr("copy")() : array;
    }
    if (copy == false) throw py::value_error("[tensor] another dtype needs a copy, but copy is False");
    return array.attr("astype")(dtype);
}

} // namespace

void bind_tensor(py::module_ &m) {
    py::class_<Tensor>(m, "Tensor")
        .def_static("from_numpy", &from_numpy, py::arg("array"), py::arg("dtype") = py::none(), py::kw_only(),
                    py::arg("copy") = py::none())
        .def_static(
            "empty",
            [](DType dtype, const Shape &shape, const DeviceOrName &device) {
                return Tensor::empty(dtype, shape, device_of(device));
            },
            py::arg("dtype"), py::arg("shape"), py::arg("device") = "cpu")
        .def_static("from_dlpack", &tensor_from_dlpack, py::arg("source"))
        .def("numpy", &to_numpy)
        .def("__array__", &to_array, py::arg("dtype") = py::none(), py::kw_only(), py::arg("copy") = py::none())
        .def("__dlpack__", &tensor_to_dlpack, py::kw_only(), py::arg("stream") = py::none(),
             py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(), py::arg("copy") = py::none())
        .def("__dlpack_device__",
             [](const Tensor &self) {
                 self.data(); // on other devices: refused by name
                 return py::make_tuple(1, 0);
             })
        .def(
            "to", [](const Tensor &self, const DeviceOrName &device) { return self.to(device_of(device)); },
            py::arg("device"))
        .def("part", &Tensor::part, py::arg("begin"), py::arg("end"))
        .def_property_readonly("dtype", &Tensor::dtype)
        .def_property_readonly("shape", [](const Tensor &self) { return py::tuple(py::cast(self.shape())); })
        .def_property_readonly("size_bytes", &Tensor::size_bytes)
        .def_property_readonly("device", &Tensor::device)
        .def_property_readonly("read_only", [](const Tensor &self) { return self.buffer()->read_only(); })
        .def("__repr__", [](const Tensor &self) {
            return cat("Tensor(", name(self.dtype()), ", ", to_string(self.shape()), ", ", self.device().name(), ")");
        });
}

} // namespace quire::bindings
