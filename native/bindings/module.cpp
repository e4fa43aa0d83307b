// The extension module quire._native: a table of contents.
#include "bindings/bindings.h"
#include "bindings/testing/bind_testing.h"
#include "core/version.h"

PYBIND11_MODULE(_native, m, pybind11::mod_gil_not_used()) {
    using namespace quire::bindings;
    namespace py = pybind11;
    m.doc() = "Native core of Quire.  Import the submodules' names from quire instead.";
    m.attr("__version__") = quire::version();
    // Importable by name ("from quire._native.core import DType"), as their stubs say.
    py::dict modules = py::module_::import("sys").attr("modules");
    auto submodule = [&](const char *name, const char *doc) {
        py::module_ sub = m.def_submodule(name, doc);
        modules[py::str(std::string("quire._native.") + name)] = sub;
        return sub;
    };
    bind_errors();
    auto core = submodule("core", "Types, devices and tensors.");
    bind_core(core);
    bind_tensor(core);
    auto gguf = submodule("gguf", "Files: GGUF and safetensors.");
    bind_gguf(gguf);
    auto quant = submodule("quant", "Quantization.");
    bind_quant(quant);
    auto kv = submodule("kv", "The paged KV cache's accounting.");
    bind_kv(kv);
    auto kernels = submodule("kernels", "Instruction sets of the CPU kernels.");
    bind_kernels(kernels);
    auto graph = submodule("graph", "Tracing and running models.");
    bind_graph(graph);
    auto parallel = submodule("parallel", "Models that several processes run together.");
    bind_parallel(parallel);
    auto engine = submodule("engine", "Sampling and decoding.");
    bind_sampling(engine);
    bind_decoder(engine);
#ifdef QUIRE_TESTING
    auto testing = submodule("testing", "Native parts by themselves, for tests and benchmarks; absent in wheels.");
    bind_testing(testing);
#endif
}
