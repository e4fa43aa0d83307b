// Lowers a trace to a program of Quire's own kernels on the CPU, fused where that saves passes over memory or over
// the team of threads: norms with the rounding that products need; products of the same activations with each other,
// with biases, residuals and gates; norms and rotations of heads with the write to the cache.  Fusing changes no bit
// of a result.
#pragma once

#include "graph/cpu/cpu_matrices.h"
#include "graph/cpu/cpu_program.h"
#include "kv/kv_store.h"

namespace quire {

struct CpuProgramInputs {
    const Trace &trace;
    const KvStore &store;
    CpuMatrices &matrices;
    CpuProgramLimits limits;
    const KernelSet &kernels;
};

// Everything that nodes refer to must outlive the program: weights, store, matrices.  It has no memory yet.  Values
// left for later pieces are taps of the program, after those of the trace.
CpuProgram lower_cpu(const CpuProgramInputs &inputs);

} // namespace quire
