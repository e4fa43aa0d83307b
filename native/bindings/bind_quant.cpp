#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core/error.h"
#include "quant/quantizer.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using AnyFloats = py::array_t<float, py::array::c_style | py::array::forcecast>;

AnyFloats dequantize_tensor(const Tensor &tensor, int threads) {
    AnyFloats array(std::vector<py::ssize_t>(tensor.shape().begin(), tensor.shape().end()));
    float *values = array.mutable_data();
    py::gil_scoped_release release;
    dequantize(tensor, values, threads);
    return array;
}

Tensor tensor_over(const py::array &storage, DType dtype) {
    return py::type::of<Tensor>().attr("from_numpy")(storage, dtype).cast<Tensor>();
}

// f32 values of an array of f32, f16 or bf16 (a NumPy extension type of that name).
AnyFloats values_of(const py::array &array, int threads) {
    const auto type = py::str(array.dtype()).cast<std::string>();
    if (type == "float32" || type == "float16") return AnyFloats::ensure(array);
    if (type == "bfloat16")
        return dequantize_tensor(tensor_over(array.attr("view")("u2").cast<py::array>(), DType::bf16), threads);
    throw ShapeError("quantize", cat("values are ", type, ": expected float32, float16 or bfloat16"));
}

Tensor quantize_array(const py::array &array, DType dtype, const std::optional<AnyFloats> &importance, int threads) {
    if (array.ndim() < 1) throw ShapeError("quantize", "the array has 0 dimensions: expected 1 to 4");
    const AnyFloats values = values_of(array, threads);
    const Shape shape(values.shape(), values.shape() + values.ndim());
    std::span<const float> weights;
    if (importance) {
        if (importance->ndim() != 1 || importance->size() == 0) {
            throw ShapeError("quantize",
                             cat("importance has ", importance->ndim(), " dimensions and ", importance->size(),
                                 " weights: expected 1 dimension, one weight per column"));
        }
        weights = {importance->data(), static_cast<size_t>(importance->size())};
    }
    py::gil_scoped_release release;
    return quantize(values.data(), shape, dtype, weights, threads);
}

Tensor quantize_tensor(const Tensor &tensor, DType dtype, const std::optional<AnyFloats> &importance, int threads) {
    return quantize_array(dequantize_tensor(tensor, threads), dtype, importance, threads);
}

} // namespace

void bind_quant(py::module_ &m) {
    m.def("quantize", &quantize_tensor, py::arg("values"), py::arg("dtype"), py::arg("importance") = py::none(),
          py::kw_only(), py::arg("threads") = 0);
    m.def("quantize", &quantize_array, py::arg("values"), py::arg("dtype"), py::arg("importance") = py::none(),
          py::kw_only(), py::arg("threads") = 0);
    m.def("dequantize", &dequantize_tensor, py::arg("tensor"), py::kw_only(), py::arg("threads") = 0);
    m.def(
        "dequantize",
        [](const py::array &storage, DType dtype, int threads) {
            return dequantize_tensor(tensor_over(storage, dtype), threads);
        },
        py::arg("storage"), py::arg("dtype"), py::kw_only(), py::arg("threads") = 0);
    m.def("can_quantize", &can_quantize, py::arg("dtype"));
    m.def("needs_importance", &needs_importance, py::arg("dtype"));
}

} // namespace quire::bindings
