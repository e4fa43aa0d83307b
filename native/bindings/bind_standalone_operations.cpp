#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "core/error.h"
#include "graph/trace/standalone_operations.h"

namespace quire::bindings {
namespace py = pybind11;
namespace {

using MaybeWeight = std::shared_ptr<Weight>;

// Defines an operation and lists it, so that a test can tell which have no entry.
class Registry {
  public:
    explicit Registry(py::module_ &m) : module_(m) {}
    ~Registry() { module_.attr("STANDALONE") = py::tuple(names_); }
    template <class... Rest> Registry &def(const char *name, Rest &&...rest) {
        module_.def(name, std::forward<Rest>(rest)...);
        names_.append(name);
        return *this;
    }
    Registry &def_function(const char *name, Function function) {
        return def(name, [function](const TraceTensor &x) { return apply(x, function); }, py::arg("x"));
    }

  private:
    py::module_ &module_;
    py::list names_;
};

void bind_hyper_connections(Registry &registry) {
    registry
        .def(
            "hyper_weights",
            [](const TraceTensor &x, MaybeWeight scale, MaybeWeight base, int n, int iterations, float eps) {
                return hyper_weights(x, std::move(scale), std::move(base), {n, iterations, eps});
            },
            py::arg("x"), py::arg("scale").none(false), py::arg("base").none(false), py::kw_only(), py::arg("n"),
            py::arg("iterations"), py::arg("eps"))
        .def("hyper_input", &hyper_input, py::arg("streams"), py::arg("weights"))
        .def("hyper_output", &hyper_output, py::arg("streams"), py::arg("y"), py::arg("weights"));
}

void bind_recurrent(Registry &registry) {
    const py::arg layer("layer"), state("state");
    registry
        .def(
            "token_shift", [](const TraceTensor &x, int layer, int state) { return token_shift(x, {layer, state}); },
            py::arg("x"), py::kw_only(), layer, state)
        .def(
            "selective_scan",
            [](const TraceTensor &x, const TraceTensor &dt, const TraceTensor &b, const TraceTensor &c, MaybeWeight a,
               MaybeWeight d, int layer,
               int state) { return selective_scan({x, dt, b, c}, std::move(a), std::move(d), {layer, state}); },
            py::arg("x"), py::arg("dt"), py::arg("b"), py::arg("c"), py::arg("a").none(false), py::arg("d"),
            py::kw_only(), layer, state)
        .def(
            "state_space_dual",
            [](const TraceTensor &x, const TraceTensor &dt, const TraceTensor &b, const TraceTensor &c, MaybeWeight a,
               MaybeWeight d, int layer,
               int state) { return state_space_dual({x, dt, b, c}, std::move(a), std::move(d), {layer, state}); },
            py::arg("x"), py::arg("dt"), py::arg("b"), py::arg("c"), py::arg("a").none(false), py::arg("d"),
            py::kw_only(), layer, state)
        .def(
            "retention",
            [](const TraceTensor &q, const TraceTensor &k, const TraceTensor &v, MaybeWeight decay, int layer,
               int state) { return retention(q, k, v, std::move(decay), {layer, state}); },
            py::arg("q"), py::arg("k"), py::arg("v"), py::arg("decay").none(false), py::kw_only(), layer, state)
        .def(
            "gated_delta",
            [](const TraceTensor &q, const TraceTensor &k, const TraceTensor &v, const TraceTensor &g,
               const TraceTensor &beta, int layer, int state,
               bool tiled) { return gated_delta({q, k, v, g, beta}, {layer, state}, tiled); },
            py::arg("q"), py::arg("k"), py::arg("v"), py::arg("g"), py::arg("beta"), py::kw_only(), layer, state,
            py::arg("tiled") = false)
        .def(
            "wkv6",
            [](const TraceTensor &r, const TraceTensor &w, const TraceTensor &k, const TraceTensor &v, MaybeWeight u,
               int layer, int state) { return wkv6({r, w, k, v}, std::move(u), {layer, state}); },
            py::arg("r"), py::arg("w"), py::arg("k"), py::arg("v"), py::arg("u").none(false), py::kw_only(), layer,
            state)
        .def(
            "wkv7",
            [](const TraceTensor &r, const TraceTensor &w, const TraceTensor &k, const TraceTensor &v,
               const TraceTensor &a, const TraceTensor &b, int layer,
               int state) { return wkv7({r, w, k, v}, a, b, {layer, state}); },
            py::arg("r"), py::arg("w"), py::arg("k"), py::arg("v"), py::arg("a"), py::arg("b"), py::kw_only(), layer,
            state);
}

} // namespace

void bind_standalone_operations(py::module_ &m) {
    Registry registry(m);
    registry.def_function("sigmoid", Function::sigmoid)
        .def_function("softplus", Function::softplus)
        .def_function("tanh", Function::tanh)
        .def_function("exp", Function::exp)
        .def_function("relu_squared", Function::relu_squared)
        .def_function("quick_gelu", Function::quick_gelu)
        .def_function("negate", Function::negate)
        .def_function("sqrt", Function::sqrt)
        .def("clamp", &clamp, py::arg("x"), py::arg("low"), py::arg("high"))
        .def(
            "xielu",
            [](const TraceTensor &x, float alpha_p, float alpha_n, float beta, float eps) {
                return xielu(x, {alpha_p, alpha_n, beta, eps});
            },
            py::arg("x"), py::kw_only(), py::arg("alpha_p"), py::arg("alpha_n"), py::arg("beta"), py::arg("eps"))
        .def("clamped_swiglu", &clamped_swiglu, py::arg("gate"), py::arg("up"), py::kw_only(), py::arg("alpha"),
             py::arg("limit"))
        .def("add_broadcast", &add_broadcast, py::arg("a"), py::arg("b"))
        .def("multiply_broadcast", &multiply_broadcast, py::arg("a"), py::arg("b"))
        .def(
            "add_weight", [](const TraceTensor &x, MaybeWeight weight) { return add_weight(x, std::move(weight)); },
            py::arg("x"), py::arg("weight").none(false))
        .def(
            "multiply_weight",
            [](const TraceTensor &x, MaybeWeight weight) { return multiply_weight(x, std::move(weight)); },
            py::arg("x"), py::arg("weight").none(false))
        .def(
            "layer_norm",
            [](const TraceTensor &x, MaybeWeight weight, MaybeWeight bias, float eps) {
                return layer_norm(x, std::move(weight), std::move(bias), eps);
            },
            py::arg("x"), py::arg("weight"), py::arg("bias"), py::arg("eps"))
        .def("l2_norm", &l2_norm, py::arg("x"), py::arg("eps"))
        .def("softmax", &softmax, py::arg("x"))
        .def(
            "group_norm",
            [](const TraceTensor &x, int n_groups, MaybeWeight weight, float eps) {
                return group_norm(x, n_groups, std::move(weight), eps);
            },
            py::arg("x"), py::arg("n_groups"), py::arg("weight"), py::arg("eps"))
        .def("slice", &slice, py::arg("x"), py::arg("axis"), py::arg("begin"), py::arg("end"))
        .def("concat", &concat, py::arg("a"), py::arg("b"), py::arg("axis"))
        .def("repeat_heads", &repeat_heads, py::arg("x"), py::arg("n"))
        .def(
            "scale_by_position",
            [](const TraceTensor &x, const TraceTensor &positions, float beta, int64_t n_ctx, int64_t offset) {
                return scale_by_position(x, positions, {beta, n_ctx, offset});
            },
            py::arg("x"), py::arg("positions"), py::kw_only(), py::arg("beta"), py::arg("n_ctx"), py::arg("offset") = 0)
        .def(
            "conv_state",
            [](const TraceTensor &x, MaybeWeight weight, MaybeWeight bias, int layer, int state, bool silu) {
                return conv_state(x, std::move(weight), std::move(bias), {layer, state}, silu);
            },
            py::arg("x"), py::arg("weight").none(false), py::arg("bias"), py::kw_only(), py::arg("layer"),
            py::arg("state"), py::arg("silu") = false);
    bind_hyper_connections(registry);
    bind_recurrent(registry);
}

} // namespace quire::bindings
