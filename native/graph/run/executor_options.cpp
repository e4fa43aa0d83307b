#include "graph/run/executor_options.h"

#include <algorithm>

#include "core/error.h"

namespace quire {
namespace {

void reject(const std::string &what) { throw UnsupportedError("executor", what); }

} // namespace

size_t budget_of(const CacheLayout &layout, const ExecutorOptions &options) {
    const auto n_blocks = static_cast<size_t>(std::max(0, options.n_blocks - 1));
    const auto n_states = static_cast<size_t>(std::max(0, options.n_states - 1));
    size_t block_bytes = n_blocks * layout.block_bytes();
    if (options.cache_bytes > 0) block_bytes = std::min(block_bytes, options.cache_bytes);
    return block_bytes + n_states * layout.state_bytes();
}

// On the CPU memory is taken when it is written, so that each group has ids for as much of the budget as it may get.
CacheSizes sizes_of(const CacheLayout &layout, const ExecutorOptions &options, bool is_cpu) {
    const size_t budget = budget_of(layout, options);
    auto n_of = [&](size_t bytes, int least) {
        return is_cpu ? static_cast<int>(std::min<size_t>(budget / bytes + 1, 1 << 30)) : least;
    };
    CacheSizes sizes;
    for (const CacheGroup &group : layout.groups())
        sizes.n_blocks.push_back(options.n_blocks < 2 ? options.n_blocks : n_of(group.block_bytes, options.n_blocks));
    if (layout.state_bytes() > 0)
        sizes.n_states = options.n_states < 2 ? options.n_states : n_of(layout.state_bytes(), options.n_states);
    return sizes;
}

bool own_kernels(Kernels kernels, const Backend &backend) {
    if (kernels == Kernels::cpu && !backend.is_cpu()) {
        throw UnsupportedError("executor", cat("kernels \"cpu\" cannot run on device ", backend.device().name()));
    }
    return kernels != Kernels::stock && backend.is_cpu();
}

void check_options(const Trace &trace, const ExecutorOptions &options, const Backend &backend) {
    const bool is_mixed = !options.places.empty(), own = own_kernels(options.kernels, backend);
    for (const auto &[name, place] : options.places)
        if (is_device(place) && device_number(place) > options.more_devices.size())
            reject(cat(name, " is placed on device number ", device_number(place), ", which the model does not have"));
    if (is_mixed && (backend.is_cpu() || options.kernels != Kernels::automatic))
        reject("a model on two devices needs a device besides the CPU, and automatic kernels");
    if (trace.stages && (!own || is_mixed)) reject("a model in several processes needs Quire's own kernels on the CPU");
    if (options.sums_inputs && (own || is_mixed)) reject("inputs of products can be summed by stock kernels only");
    if (options.sums_inputs && !backend.is_cpu())
        reject(cat("inputs of products cannot be summed on device ", backend.device().name(), ": use the CPU"));
    if (options.sums_inputs && trace.encoder) reject("inputs of products cannot be summed for a model with an encoder");
    if (own || is_mixed) return;
    const char *unused = " needs Quire's own kernels, which are not in use here";
    if (options.kernel_set) reject(cat("a kernel set", unused));
    if (!options.cpus.empty()) reject(cat("a processor mask", unused));
}

GraphLimits limits_for(const Trace &trace, const ExecutorOptions &options, bool own) {
    const bool is_vectors = trace.kind == OutputKind::vectors;
    const int most_rows = is_vectors || trace.encoder ? 32768 : 4096; // texts that cannot be divided may be long
    if (options.max_rows < 1 || options.max_rows > most_rows)
        throw ShapeError("executor", cat("max_rows is ", options.max_rows, ": expected 1 to ", most_rows));
    if (options.max_sequences < 1 || options.max_sequences > 1024) {
        throw ShapeError("executor", cat("max_sequences is ", options.max_sequences, ": expected 1 to 1024"));
    }
    int rows = std::max(options.max_rows, options.max_sequences);
    // Logits of a large vocabulary are the largest array of a step, so few rows of them are made at a time.
    int logit_rows = is_vectors ? rows : std::min(rows, std::max(options.max_sequences, 64));
    // Where no layer keeps rows, a step has no cached ones but its own.
    const bool keeps_rows =
        std::ranges::any_of(trace.cache, [](const CacheSpec &spec) { return spec.rows.has_value(); });
    const int kv_tokens = keeps_rows ? (options.n_blocks - 1) * kv_block_tokens : rows;
    return {rows, logit_rows, options.max_sequences, own ? 0 : kv_tokens};
}

} // namespace quire
