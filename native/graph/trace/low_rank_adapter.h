// Low-rank adapters (Hu et al. 2021, "LoRA") that are loaded beside a running model.
//
// For a matrix W that an adapter has a pair for, rows x of sequences with the adapter get scale * factor * B (A x) added
// to W x.  An adapter is immutable, and lives as long as a request or its owner holds it, so that adapters come and go
// without a change of the trace.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/trace/trace.h"

namespace quire {

class CpuPairs; // graph/cpu/cpu_pairs.h

// A pair that devices copy: A [rank, n_in], and B [n_out, rank] times the factor, both in host memory.
struct DevicePair {
    Tensor a, b;
};

struct LowRankAdapter {
    std::string identity; // names its contents
    uint64_t number; // no other adapter of this process has it
    size_t size_bytes = 0; // in host memory
    std::shared_ptr<const CpuPairs> on_cpu = nullptr; // for products of Quire's own kernels; null if there are none
    std::unordered_map<const Weight *, DevicePair> for_devices = {}; // for products in ggml graphs
    std::vector<WeightRef> weights = {}; // kept, as their addresses are keys
};

} // namespace quire
