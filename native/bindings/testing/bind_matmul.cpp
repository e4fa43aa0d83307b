#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "bindings/testing/bind_testing.h"
#include "bindings/testing/workers.h"
#include "core/error.h"
#include "core/large_pages.h"
#include "graph/cpu/packed_model.h"
#include "kernels/matmul/matmul.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using Floats = py::array_t<float, py::array::c_style>;

// A matrix in the layout of our own products, made from a tensor.
class PackedMatrix {
  public:
    PackedMatrix(const Tensor &tensor, const KernelSet &kernels, int threads)
        : kernels_(kernels), packed_(pack(kernels, tensor, Repack::keep, threads)) {}

    int64_t n_out() const { return packed_.weights.n_out; }
    int64_t n_in() const { return packed_.weights.n_in; }
    int64_t size_bytes() const { return packed_.weights.size_bytes(); }

    Floats values() const {
        Floats out({n_out(), n_in()});
        for (int64_t row = 0; row < n_out(); ++row) unpack_row(packed_.weights, row, out.mutable_data() + row * n_in());
        return out;
    }

    Floats multiply(const Floats &x, int n_workers, bool raw) const {
        if (x.ndim() != 2 || x.shape(1) != n_in() || x.shape(0) < 1)
            throw ShapeError("matmul", cat("x has the wrong shape: expected [1 or more, ", n_in(), "]"));
        check_workers(n_workers);
        const int n_rows = static_cast<int>(x.shape(0));
        const Matrix matrix = packed_matrix(kernels_, packed_.weights);
        const bool as_is = raw || !matrix.rounds();
        Floats out({x.shape(0), static_cast<py::ssize_t>(n_out())});
        const float *rows = x.data();
        Matmul matmul{packed_.weights, as_is ? rows : nullptr, nullptr, n_rows, out.mutable_data()};
        py::gil_scoped_release release;
        const Workers workers(n_workers);
        if (!as_is) {
            static thread_local AlignedMemory rounded;
            uint8_t *to = rounded.at_least(static_cast<size_t>(n_rows * matrix.x_row_bytes()));
            workers->for_each(n_workers, 1,
                              [&](int i) { round_rows(kernels_, matrix, rows, n_rows, i, n_workers, to); });
            matmul.x = to;
        }
        std::atomic<int> next{0};
        workers->run([&](int) { packed_matmul(kernels_, matmul, next, n_workers); });
        return out;
    }

  private:
    KernelSet kernels_;
    PackedTensor packed_;
};

} // namespace

void bind_matmul(py::module_ &m) {
    py::class_<PackedMatrix>(m, "PackedMatrix")
        .def(py::init<const Tensor &, const KernelSet &, int>(), py::arg("tensor"), py::arg("kernels") = KernelSet(),
             py::kw_only(), py::arg("threads") = 1)
        .def_property_readonly("shape",
                               [](const PackedMatrix &self) { return py::make_tuple(self.n_out(), self.n_in()); })
        .def_property_readonly("size_bytes", &PackedMatrix::size_bytes)
        .def("values", &PackedMatrix::values)
        .def("multiply", &PackedMatrix::multiply, py::arg("x"), py::kw_only(), py::arg("n_workers") = 1,
             py::arg("raw") = false);
}

} // namespace quire::bindings
