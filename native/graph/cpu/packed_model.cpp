#include "graph/cpu/packed_model.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/large_pages.h"
#include "core/system.h"
#include "graph/cpu/weight_types.h"
#include "kernels/matmul/matmul.h"

namespace quire {
namespace {

// Matrices of products and tables, in the order of their first use.
std::vector<WeightRef> matrices_of(const Trace &trace) {
    std::vector<WeightRef> found;
    std::set<const Weight *> seen;
    auto use = [&](const WeightRef &weight) {
        if (seen.insert(weight.get()).second) found.push_back(weight);
    };
    std::vector<const Trace *> passes{&trace};
    if (trace.encoder) passes.push_back(trace.encoder.get());
    for (const Trace *pass : passes)
        for (const Operation &operation : pass->operations)
            for (const WeightRef &weight : operation.kind->weights()) seen.insert(weight.get());
    for (const Trace *pass : passes)
        for (const Operation &operation : pass->operations)
            for (const WeightRef &weight : operation.kind->matrices()) use(weight);
    return found;
}

std::shared_ptr<uint8_t> pages(size_t size_bytes) {
    std::shared_ptr<uint8_t> memory = new_pages(size_bytes, true);
    if (!memory) throw CapacityError("weights", cat("out of memory: ", size_bytes, " bytes of packed weights"));
    advise_large_pages(memory.get(), size_bytes); // read from end to end for every token
    return memory;
}

void lock(uint8_t *memory, size_t size_bytes) {
    if (lock_pages(memory, size_bytes)) return;
    throw CapacityError("weights",
                        cat("cannot lock ", size_bytes, " bytes of packed weights in memory (see ulimit -l)"));
}

bool gives_back(Repack repack) { return repack == Repack::release || repack == Repack::lock; }

// Matrices whose rows are looked up and no more.
std::set<const Weight *> tables_of(const Trace &trace) {
    std::set<const Weight *> tables, multiplied;
    for (const Trace *pass : {&trace, static_cast<const Trace *>(trace.encoder.get())}) {
        if (pass == nullptr) continue;
        for (const Operation &operation : pass->operations)
            for (const WeightRef &weight : operation.kind->matrices())
                (operation.kind->table() == weight.get() ? tables : multiplied).insert(weight.get());
    }
    for (const Weight *weight : multiplied) tables.erase(weight);
    return tables;
}

PackedWeights packed_form(const KernelSet &kernels, const Tensor &tensor, bool is_multiplied = true) {
    const int64_t n_in = tensor.shape().back();
    const bool is_rounded = is_multiplied && tensor.dtype() == DType::f16 && kernels.multiplies_bf16();
    const WeightFormat format = is_rounded ? WeightFormat::bf16 : *packed_format(tensor.dtype());
    return {format, tensor.n_elements() / n_in, n_in, nullptr, is_rounded};
}

} // namespace

bool can_pack(const Tensor &tensor) {
    const std::optional<WeightFormat> format = packed_format(tensor.dtype());
    if (!format || tensor.shape().size() < 2 || tensor.shape().size() > 3) return false;
    // Matrices that follow each other are one, if no tile holds rows of two.
    return tensor.shape().size() == 2 || tensor.shape()[1] % PackedWeights{*format, 0, 0, nullptr}.rows_of_tile() == 0;
}

namespace {

PackedTensor pack_into(std::shared_ptr<uint8_t> memory, PackedWeights packed, const Tensor &tensor, Repack repack,
                       int n_threads) {
    if (repack == Repack::lock) lock(memory.get(), static_cast<size_t>(packed.size_bytes()));
    packed.data = memory.get();
    std::atomic<int64_t> next{0};
    const bool release = gives_back(repack);
    const auto row = static_cast<int64_t>(row_bytes(tensor.dtype(), packed.n_in));
    std::exception_ptr failure;
    std::mutex failing;
    auto try_work = [&] {
        constexpr int64_t run = 16;
        for (int64_t i; (i = next.fetch_add(run)) < packed.n_tiles();) {
            for (int64_t tile = i; tile < std::min(i + run, packed.n_tiles()); ++tile)
                pack_tile(packed, tensor, tile, memory.get() + tile * packed.tile_bytes());
            const int64_t begin = i * packed.rows_of_tile();
            const int64_t end = std::min((i + run) * packed.rows_of_tile(), packed.n_out);
            if (release) give_back(tensor.data() + begin * row, static_cast<size_t>((end - begin) * row));
        }
    };
    auto work = [&] {
        try {
            try_work();
        } catch (...) {
            const std::scoped_lock guard(failing);
            failure = std::current_exception();
            next.store(packed.n_tiles());
        }
    };
    std::vector<std::thread> others;
    for (int i = 1; i < n_threads; ++i) others.emplace_back(work);
    work();
    for (std::thread &thread : others) thread.join();
    if (failure) std::rethrow_exception(failure);
    if (release) give_back(tensor.data(), tensor.size_bytes()); // pages that two runs share
    return {std::move(memory), packed};
}

} // namespace

PackedTensor pack(const KernelSet &kernels, const Tensor &tensor, Repack repack, int n_threads) {
    if (!can_pack(tensor)) {
        throw UnsupportedError("weights", cat("no packed layout for a matrix of type ", name(tensor.dtype()), ' ',
                                              to_string(tensor.shape())));
    }
    const PackedWeights packed = packed_form(kernels, tensor);
    return pack_into(pages(static_cast<size_t>(packed.size_bytes())), packed, tensor, repack, n_threads);
}

PackedModel::PackedModel(const KernelSet &kernels, const Trace &trace, Repack repack, int n_threads,
                         const std::optional<PackedCacheOptions> &cache_options, const PackedModel *others)
    : kernels_(kernels), tables_(tables_of(trace)) {
    std::vector<WeightRef> weights;
    for (const WeightRef &weight : matrices_of(trace)) {
        if (others != nullptr)
            if (const auto shared = others->matrices_.find(weight.get()); shared != others->matrices_.end()) {
                matrices_.insert(*shared); // the memory that it was made of may be gone
                continue;
            }
        if (can_pack(weight->tensor)) weights.push_back(weight);
    }
    if (!cache_options || weights.empty()) {
        pack_all(weights, repack, n_threads, nullptr);
        return;
    }
    std::vector<PackedSource> sources;
    for (const WeightRef &weight : weights) sources.push_back({form_of(weight), &weight->tensor});
    PackedCache cache(*cache_options, sources, n_threads);
    if (const std::shared_ptr<MappedFile> file = cache.find()) {
        for (size_t i = 0; i < weights.size(); ++i) {
            // Owned by the file; nobody writes to packed weights.
            auto *data = const_cast<uint8_t *>(file->data() + cache.offset_of(i));
            const Tensor &tensor = weights[i]->tensor;
            PackedTensor packed{std::shared_ptr<uint8_t>(file, data), sources[i].weights};
            packed.weights.data = data;
            take(weights[i], std::move(packed));
            if (gives_back(repack)) give_back(tensor.data(), tensor.size_bytes());
        }
        from_cache_ = true;
    } else {
        pack_all(weights, repack, n_threads, &cache);
        cache.end();
    }
    cache_notes_ = cache.notes();
}

PackedWeights PackedModel::form_of(const WeightRef &weight) const {
    return packed_form(kernels_, weight->tensor, tables_.count(weight.get()) == 0);
}

void PackedModel::pack_all(const std::vector<WeightRef> &weights, Repack repack, int n_threads, PackedCache *cache) {
    // One piece of memory: large pages would cover little of matrices that begin and end within them.
    size_t size_bytes = 0;
    for (const WeightRef &weight : weights) size_bytes += static_cast<size_t>(form_of(weight).size_bytes());
    if (size_bytes == 0) return;
    const std::shared_ptr<uint8_t> memory = pages(size_bytes);
    uint8_t *next = memory.get();
    for (const WeightRef &weight : weights) {
        PackedTensor packed = pack_into({memory, next}, form_of(weight), weight->tensor, repack, n_threads);
        next += packed.weights.size_bytes();
        if (cache != nullptr) cache->write(packed.weights);
        take(weight, std::move(packed));
    }
}

void PackedModel::take(const WeightRef &weight, PackedTensor packed) {
    size_bytes_ += static_cast<size_t>(packed.weights.size_bytes());
    matrices_.emplace(weight.get(), std::move(packed));
}

const PackedWeights *PackedModel::find(const WeightRef &weight) const {
    const auto found = matrices_.find(weight.get());
    return found == matrices_.end() ? nullptr : &found->second.weights;
}

} // namespace quire
