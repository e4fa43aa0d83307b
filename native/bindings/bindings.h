// One function per bind file; each fills one submodule of quire._native.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace quire {
enum class Activation;
}

namespace quire::bindings {

void bind_errors();                       // exceptions of core/error.h become those of quire.errors
void bind_core(pybind11::module_ &m);     // DType, Device, devices
void bind_tensor(pybind11::module_ &m);   // Tensor: NumPy and DLPack (into submodule core)
void bind_gguf(pybind11::module_ &m);     // readers and writers of GGUF and safetensors
void bind_quant(pybind11::module_ &m);    // quantize, dequantize
void bind_kv(pybind11::module_ &m);       // BlockPool, BlockTable, prefix hashes
void bind_kernels(pybind11::module_ &m);
void bind_matmul(pybind11::module_ &m); // the CPU kernels on NumPy arrays, for tests and benchmarks
void bind_rows(pybind11::module_ &m);
void bind_graph(pybind11::module_ &m);
void bind_executor(pybind11::module_ &m); // (into submodule graph, as the next)
void bind_primitives(pybind11::module_ &m); // general operations
void bind_sampling(pybind11::module_ &m); // SamplingParams, Sampler, StopMatcher (into submodule engine)
void bind_scheduler(pybind11::module_ &m); // Scheduler with an outside clock
void bind_decoder(pybind11::module_ &m);  // Decoder (into submodule engine)

Activation activation_named(const std::string &text); // UnsupportedError lists the names

} // namespace quire::bindings
