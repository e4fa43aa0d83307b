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
void bind_kv(pybind11::module_ &m);       // BlockPool, BlockTable, CacheLayout
void bind_kernels(pybind11::module_ &m); // instruction sets
void bind_graph(pybind11::module_ &m);
void bind_executor(pybind11::module_ &m); // (into submodule graph, as the next)
void bind_standalone_operations(pybind11::module_ &m); // general operations
void bind_parallel(pybind11::module_ &m); // models that several processes run together
void bind_sampling(pybind11::module_ &m); // SamplingParams (into submodule engine)
void bind_decoder(pybind11::module_ &m);  // Decoder (into submodule engine)

Activation activation_named(const std::string &text); // UnsupportedError lists the names

} // namespace quire::bindings
