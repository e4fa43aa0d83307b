#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>

#include "bindings/bindings.h"
#include "bindings/testing/bind_testing.h"
#include "core/error.h"
#include "kernels/kernel_set.h"
#include "kernels/rows/row_kernels.h"
#include "kernels/thread_team.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using Floats = py::array_t<float, py::array::c_style>;

void expect_alike(const Floats &a, const Floats &b) {
    if (a.ndim() != b.ndim() || !std::equal(a.shape(), a.shape() + a.ndim(), b.shape()))
        throw ShapeError("rows", "the arrays have different shapes");
}

Floats like(const Floats &x) { return Floats(std::vector<py::ssize_t>(x.shape(), x.shape() + x.ndim())); }

Floats rms_norm(const KernelSet &kernels, const Floats &x, const std::optional<Floats> &weight, float eps) {
    const auto n = x.shape(x.ndim() - 1);
    if (weight && weight->size() != n) throw ShapeError("rows", cat("weight must be [", n, "]"));
    Floats out = like(x);
    for (py::ssize_t i = 0; i + n <= x.size(); i += n)
        kernels.rows().rms_norm(x.data() + i, weight ? weight->data() : nullptr, eps, out.mutable_data() + i, n);
    return out;
}

Floats layer_norm(const KernelSet &kernels, const Floats &x, const std::optional<Floats> &weight,
                  const std::optional<Floats> &bias, float eps) {
    const auto n = x.shape(x.ndim() - 1);
    for (const auto *vector : {&weight, &bias})
        if (*vector && (*vector)->size() != n) throw ShapeError("rows", cat("weight and bias must be [", n, "]"));
    Floats out = like(x);
    for (py::ssize_t i = 0; i + n <= x.size(); i += n)
        kernels.rows().layer_norm(x.data() + i, weight ? weight->data() : nullptr, bias ? bias->data() : nullptr, eps,
                                  out.mutable_data() + i, n);
    return out;
}

Floats rotate(const KernelSet &set, const Floats &x, const Floats &cosines, const Floats &sines, bool interleaved) {
    expect_alike(x, cosines);
    expect_alike(x, sines);
    if (x.ndim() != 1 || x.size() % 2 != 0) throw ShapeError("rows", "x must have one dimension of even size");
    Floats out = like(x);
    std::copy(x.data(), x.data() + x.size(), out.mutable_data());
    const RowKernels &kernels = set.rows();
    (interleaved ? kernels.rotate_interleaved : kernels.rotate_half)(out.mutable_data(), cosines.data(), sines.data(),
                                                                     x.size());
    return out;
}

// A team of its own, and how often each index was handed out.
class Team {
  public:
    Team(int n_workers, std::vector<int> cpus) : team_(n_workers, std::move(cpus)) {}
    int n_workers() const { return team_.n_workers(); }
    std::vector<int> count(int n, int grain, int repetitions) {
        std::vector<std::atomic<int>> counts(static_cast<size_t>(std::max(n, 0)));
        for (int i = 0; i < repetitions; ++i)
            team_.for_each(n, std::max(grain, 1), [&](int index) { ++counts[static_cast<size_t>(index)]; });
        return {counts.begin(), counts.end()};
    }

  private:
    ThreadTeam team_;
};

} // namespace

void bind_rows(py::module_ &m) {
    m.def("rms_norm", &rms_norm, py::arg("kernels"), py::arg("x"), py::arg("weight"), py::arg("eps"));
    m.def("layer_norm", &layer_norm, py::arg("kernels"), py::arg("x"), py::arg("weight"), py::arg("bias"),
          py::arg("eps"));
    m.def("rotate", &rotate, py::arg("kernels"), py::arg("x"), py::arg("cosines"), py::arg("sines"), py::kw_only(),
          py::arg("interleaved") = false);
    m.def(
        "activate",
        [](const KernelSet &kernels, const Floats &x, const std::string &name) {
            Floats out = like(x);
            kernels.rows().activate(activation_named(name), x.data(), out.mutable_data(), x.size());
            return out;
        },
        py::arg("kernels"), py::arg("x"), py::arg("activation"));
    m.def(
        "gate",
        [](const KernelSet &kernels, const Floats &gate, const Floats &up, const std::string &name) {
            expect_alike(gate, up);
            Floats out = like(gate);
            kernels.rows().gate(activation_named(name), gate.data(), up.data(), out.mutable_data(), gate.size());
            return out;
        },
        py::arg("kernels"), py::arg("gate"), py::arg("up"), py::arg("activation"));
    m.def(
        "soft_cap",
        [](const KernelSet &kernels, const Floats &x, float cap) {
            Floats out = like(x);
            kernels.rows().soft_cap(x.data(), cap, out.mutable_data(), x.size());
            return out;
        },
        py::arg("kernels"), py::arg("x"), py::arg("cap"));
    m.def(
        "largest", [](const KernelSet &kernels, const Floats &x) { return kernels.rows().largest(x.data(), x.size()); },
        py::arg("kernels"), py::arg("x"));
    py::class_<Team>(m, "ThreadTeam")
        .def(py::init<int, std::vector<int>>(), py::arg("n_workers"), py::kw_only(),
             py::arg("cpus") = std::vector<int>{})
        .def_property_readonly("n_workers", &Team::n_workers)
        .def("count", &Team::count, py::arg("n"), py::kw_only(), py::arg("grain") = 1, py::arg("repetitions") = 1,
             py::call_guard<py::gil_scoped_release>());
}

} // namespace quire::bindings
