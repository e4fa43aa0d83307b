// How large an executor is and where it runs: what the caller says, and what follows from it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/device.h"
#include "graph/cpu/packed_model.h"
#include "graph/run/placement.h"
#include "graph/stock/graph_key.h"
#include "kernels/kernel_set.h"
#include "kv/kv_store.h"

namespace quire {

class ThreadTeam;

enum class Kernels { automatic, stock, cpu };

struct ExecutorOptions {
    int n_blocks;      // for every group of layers, the null block included: together they make the cache's budget
    int n_states;      // slots of recurrent state, slot 0 included; likewise
    int n_threads;     // 0: one per core
    CacheTypes kv_types; // f32, f16, bf16, or coded ones with our own kernels
    Kernels kernels;
    int max_rows;      // tokens of a step
    int max_sequences; // in one step
    Repack repack;     // weights that our own products read
    std::vector<int> cpus; // the processors that the threads of our own kernels may use; empty: any
    std::optional<PackedCacheOptions> packed_cache;
    std::optional<KernelSet> kernel_set; // that our own kernels compute with; none: the default one
    // Budget of the blocks of all groups together, if less than n_blocks of each: windows need fewer.  0: no such
    // limit.
    size_t cache_bytes = 0;
    bool sums_inputs = false; // inputs of products: by stock kernels on the CPU only
    // Taken from another executor, which never runs at the same time; null: a team of its own.
    std::shared_ptr<ThreadTeam> team = nullptr;
    // Packed matrices of another executor, so that those that both read are packed once.  Null: all are packed here.
    const PackedModel *packed_of = nullptr;
    // Where operations run, by their weights; what a device reads that lies elsewhere is copied there.  Empty: all
    // are where the model runs.
    PlacesOfWeights places = {};
    std::vector<Device> more_devices = {}; // the second one and those after it, which only places speak of
    Memory memory = Memory::taken; // on the devices
};

// Bytes of blocks and states together.
size_t budget_of(const CacheLayout &layout, const ExecutorOptions &options);
CacheSizes sizes_of(const CacheLayout &layout, const ExecutorOptions &options, bool is_cpu);
// True if a model that is wholly on this device runs by Quire's own kernels.
bool own_kernels(Kernels kernels, const Backend &backend);
// UnsupportedError for what does not go together, before anything is made.
void check_options(const Trace &trace, const ExecutorOptions &options, const Backend &backend);
// `own`: no part of it runs by ggml's operators.
GraphLimits limits_for(const Trace &trace, const ExecutorOptions &options, bool own);

} // namespace quire
