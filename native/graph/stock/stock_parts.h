// The arguments of lowering to ggml's operators, and building blocks that several operations share.
#pragma once

#include <ggml.h>

#include <array>
#include <vector>

#include "graph/trace/trace.h"
#include "kernels/rows/row_kernels.h"

namespace quire {

class DeviceWeights;
class KvStore;
class InputSums;
struct StockGraph;

// Shapes of ggml are reversed: [tokens, h, d] is ne = {d, h, tokens}.
struct StockParts {
    ggml_context *context;
    std::vector<ggml_tensor *> inputs;
    const TraceShape &shape; // the result's
    int64_t lead; // rows of the result
    // For operations with a state per sequence; otherwise null.
    const KvStore *store = nullptr;
    ggml_tensor *sequences = nullptr; // on the CPU, i32 {2, n}: first row and state of each sequence, then empty ones
    // For operations of graph/operations/: the graph under construction; null inside a program on the CPU.
    StockGraph *graph = nullptr;
    std::vector<int> n_reads{}; // by input: its readers, in the graph and outside; empty inside a program
    bool is_only_read(size_t input) const { return input < n_reads.size() && n_reads[input] == 1; } // by this operation
    InputSums *sums = nullptr; // observes the inputs of products; may be null
    DeviceWeights *copies = nullptr; // copies of weights that are not on the device; null if all are
    ggml_tensor *weight(const WeightRef &w) const;
    // Returns `x`, observed; the product with `w` must read the returned tensor (graph/stock/input_sums.h).
    ggml_tensor *read_by(const WeightRef &w, ggml_tensor *x, ggml_tensor *experts = nullptr) const;
};

// The dimensions of a value with `lead` rows.
std::array<int64_t, 4> stock_dims(const TraceShape &shape, int64_t lead);
// The first `lead` rows of a boundary on the device.
ggml_tensor *device_rows(ggml_context *context, const Boundary &boundary, int64_t lead);
// A value, and the RMS norm that made it, if one did.
struct StockNormed {
    ggml_tensor *x; // before the norm
    ggml_tensor *weight = nullptr; // may be null
    bool is_normed = false;
    float eps = 0;
};
StockNormed before_norm(ggml_tensor *x);
ggml_tensor *stock_activation(ggml_context *ctx, ggml_tensor *x, Activation activation);
ggml_tensor *stock_gate(ggml_context *ctx, ggml_tensor *gate, ggml_tensor *up, Activation activation);
ggml_tensor *stock_gate(ggml_context *ctx, ggml_tensor *both, Activation activation); // rows of gate, then up
ggml_tensor *stock_soft_cap(ggml_context *ctx, ggml_tensor *x, float cap); // cap * tanh(x / cap)

} // namespace quire
