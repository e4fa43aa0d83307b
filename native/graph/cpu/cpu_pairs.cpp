#include "graph/cpu/cpu_pairs.h"

#include <atomic>
#include <charconv>
#include <cstring>
#include <set>

#include "core/error.h"
#include "core/large_pages.h"
#include "core/system.h"
#include "graph/cpu/cpu_matrices.h"
#include "graph/cpu/weight_types.h"
#include "quant/quantizer.h"

namespace quire {
namespace {

constexpr size_t line_bytes = 64;
size_t whole_lines(size_t bytes) { return (bytes + line_bytes - 1) / line_bytes * line_bytes; }

void check_halves(const AdapterPair &pair, int64_t n_in, int64_t n_out) {
    const Shape &a = pair.a.shape(), &b = pair.b.shape();
    if (pair.a.dtype() != DType::f32 || pair.b.dtype() != DType::f32)
        throw ShapeError("adapter", cat("the pair of ", pair.matrix, " is not of type f32"));
    if (a.size() != 2 || b.size() != 2 || a[1] != n_in || b[0] != n_out || a[0] != b[1])
        throw ShapeError("adapter", cat("the pair of ", pair.matrix, " is ", to_string(a), " and ", to_string(b),
                                        ": expected [rank, ", n_in, "] and [", n_out, ", rank]"));
}

Tensor converted(const Tensor &tensor, DType dtype) {
    return quantize(reinterpret_cast<const float *>(tensor.data()), tensor.shape(), dtype, {}, 1);
}

// One product that a pair changes.
struct Site {
    WeightRef weight;
    const AdapterPair *pair;
    int64_t first_row; // in B
    int64_t rank() const { return pair->a.shape()[0]; }
    int64_t n_in() const { return pair->a.shape()[1]; }
    int64_t n_out() const { return weight->tensor.shape()[0]; }
    bool is_f32() const { return weight->tensor.dtype() == DType::f32; }
    DType dtype() const { return is_f32() ? DType::f32 : DType::bf16; } // on the CPU
    Tensor b() const { return pair->b.part(first_row, first_row + n_out()); }
    PackedWeights form_of_b() const {
        return {is_f32() ? WeightFormat::f32 : WeightFormat::bf16, n_out(), rank(), nullptr};
    }
    size_t a_bytes() const { return whole_lines(static_cast<size_t>(rank()) * row_bytes(dtype(), n_in())); }
    size_t b_bytes() const { return whole_lines(static_cast<size_t>(form_of_b().size_bytes())); }
};

} // namespace

class AdapterMaker {
  public:
    AdapterMaker(std::string identity, const KernelSet *kernels, const AdaptedWeights &products,
                 const std::vector<AdapterPair> &pairs)
        : kernels_(kernels), products_(products), pairs_(pairs), made_(std::make_shared<LowRankAdapter>()) {
        static std::atomic<uint64_t> n_made = 0;
        made_->identity = std::move(identity);
        made_->number = ++n_made;
        for (const AdapterPair &pair : pairs) by_name_[pair.matrix].push_back(&pair);
    }

    std::shared_ptr<LowRankAdapter> make() {
        const std::vector<Site> on_cpu = sites_of(products_.on_cpu), on_devices = sites_of(products_.on_devices);
        for (const AdapterPair &pair : pairs_) {
            const auto found = n_rows_.find(&pair);
            if (found == n_rows_.end())
                throw UnsupportedError("adapter", cat("no product of the model reads '", pair.matrix, "'"));
            check_halves(pair, pair.a.shape()[1], found->second);
        }
        if (!on_cpu.empty()) pack(on_cpu);
        copy(on_devices);
        return made_;
    }

  private:
    std::vector<Site> sites_of(const std::vector<WeightRef> &products) {
        std::vector<Site> sites;
        std::set<const Weight *> seen;
        for (const WeightRef &weight : products) {
            if (!seen.insert(weight.get()).second) continue;
            const MatrixRows rows = matrix_rows(*weight);
            const auto found = by_name_.find(rows.tensor);
            if (found == by_name_.end()) continue;
            if (found->second.size() > 1) throw ShapeError("adapter", cat("several pairs for ", rows.tensor));
            const AdapterPair *pair = found->second.front();
            const Shape &shape = weight->tensor.shape();
            const int64_t end = rows.first_row + shape[0];
            check_halves(*pair, shape[1], std::max(pair->b.shape()[0], end));
            n_rows_[pair] = std::max(n_rows_[pair], end);
            sites.push_back({weight, pair, rows.first_row});
            made_->weights.push_back(weight);
        }
        return sites;
    }

    void pack(const std::vector<Site> &sites) {
        auto packed_pairs = std::make_shared<CpuPairs>();
        std::unordered_map<const AdapterPair *, Matrix> shared; // parts of one matrix read one A
        size_t size_bytes = 0;
        for (const Site &site : sites) {
            if (shared.try_emplace(site.pair).second) size_bytes += site.a_bytes();
            size_bytes += site.b_bytes();
        }
        packed_pairs->memory_ = new_pages(size_bytes, true);
        if (!packed_pairs->memory_)
            throw CapacityError("adapter", cat("out of memory: ", size_bytes, " bytes of an adapter"));
        uint8_t *next = packed_pairs->memory_.get();
        for (const Site &site : sites) {
            Matrix &a = shared[site.pair];
            if (a.rows.data == nullptr) {
                const Tensor kept = converted(site.pair->a, site.dtype());
                std::memcpy(next, kept.data(), kept.size_bytes());
                a = {{}, file_rows(site.pair->matrix, site.dtype(), next, site.n_in()), site.rank(), site.n_in()};
                next += site.a_bytes();
            }
            const Tensor b = converted(site.b(), site.dtype());
            PackedWeights packed = site.form_of_b();
            for (int64_t tile = 0; tile < packed.n_tiles(); ++tile)
                pack_tile(packed, b, tile, next + tile * packed.tile_bytes());
            packed.data = next;
            next += site.b_bytes();
            packed_pairs->pairs_.emplace(site.weight.get(),
                                         CpuPairs::Pair{a, packed_matrix(*kernels_, packed), site.pair->factor});
        }
        made_->on_cpu = std::move(packed_pairs);
        made_->size_bytes += size_bytes;
    }

    void copy(const std::vector<Site> &sites) {
        std::unordered_map<const AdapterPair *, Tensor> shared;
        for (const Site &site : sites) {
            const DType dtype = products_.devices_have_bf16 ? site.dtype() : DType::f32;
            auto a = shared.find(site.pair);
            if (a == shared.end()) {
                a = shared.emplace(site.pair, converted(site.pair->a, dtype)).first;
                made_->size_bytes += a->second.size_bytes();
            }
            const Tensor given = site.b();
            std::vector<float> b(static_cast<size_t>(given.n_elements()));
            const auto *from = reinterpret_cast<const float *>(given.data());
            for (size_t i = 0; i < b.size(); ++i) b[i] = site.pair->factor * from[i];
            const Tensor kept = quantize(b.data(), given.shape(), dtype, {}, 1);
            made_->size_bytes += kept.size_bytes();
            made_->for_devices.emplace(site.weight.get(), DevicePair{a->second, kept});
        }
    }

    const KernelSet *kernels_;
    const AdaptedWeights &products_;
    const std::vector<AdapterPair> &pairs_;
    std::shared_ptr<LowRankAdapter> made_;
    std::unordered_map<std::string, std::vector<const AdapterPair *>> by_name_;
    std::unordered_map<const AdapterPair *, int64_t> n_rows_; // the matrix has at least so many
};

MatrixRows matrix_rows(const Weight &weight) {
    MatrixRows rows{weight.name, 0};
    // Parts of parts are named x[begin:end][begin:end].
    while (!rows.tensor.empty() && rows.tensor.back() == ']') {
        const size_t at = rows.tensor.rfind('[');
        if (at == std::string::npos) break;
        int64_t begin = 0;
        const char *first = rows.tensor.data() + at + 1, *last = rows.tensor.data() + rows.tensor.size();
        const auto [end, failure] = std::from_chars(first, last, begin);
        if (failure != std::errc() || *end != ':') break;
        rows.first_row += begin;
        rows.tensor.resize(at);
    }
    return rows;
}

std::shared_ptr<LowRankAdapter> make_adapter(std::string identity, const KernelSet *kernels,
                                             const AdaptedWeights &products, const std::vector<AdapterPair> &pairs) {
    return AdapterMaker(std::move(identity), kernels, products, pairs).make();
}

} // namespace quire
