#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core/error.h"
#include "quant/quantizer.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using Floats = py::array_t<float, py::array::c_style | py::array::forcecast>;

Tensor quantize_array(const Floats &array, DType dtype, const std::optional<Floats> &importance, int threads) {
    if (array.ndim() < 1) throw ShapeError("quantize", "the array must have 1 to 4 dimensions but has 0");
    Shape shape(array.shape(), array.shape() + array.ndim());
    std::span<const float> weights;
    if (importance) {
        if (importance->ndim() != 1) throw ShapeError("quantize", cat("importance must have 1 dimension but has ", importance->ndim()));
        weights = {importance->data(), static_cast<size_t>(importance->size())};
    }
    py::gil_scoped_release release;
    return quantize(array.data(), shape, dtype, weights, threads);
}

Floats dequantize_tensor(const Tensor &tensor, int threads) {
    Floats array(std::vector<py::ssize_t>(tensor.shape().begin(), tensor.shape().end()));
    float *values = array.mutable_data();
    py::gil_scoped_release release;
    dequantize(tensor, values, threads);
    return array;
}

} // namespace

void bind_quant(py::module_ &m) {
    m.def("quantize", &quantize_array, py::arg("array"), py::arg("dtype"), py::arg("importance") = py::none(), py::kw_only(), py::arg("threads") = 0);
    m.def("dequantize", &dequantize_tensor, py::arg("tensor"), py::kw_only(), py::arg("threads") = 0);
    m.def("can_quantize", &can_quantize, py::arg("dtype"));
    m.def("needs_importance", &needs_importance, py::arg("dtype"));
}

} // namespace quire::bindings
