#include "graph/cpu/cpu_pairs.h"

#include <atomic>
#include <charconv>
#include <cstring>
#include <set>
#include <unordered_map>

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

void check(const AdapterPair &pair, int64_t n_in, int64_t n_rows) {
    const auto fail = [&](const std::string &what) {
        throw ShapeError("adapter", cat("the pair of ", pair.matrix, ' ', what));
    };
    const Shape &b = pair.b.shape();
    for (const Tensor *each : {pair.a ? &*pair.a : &pair.b, &pair.b})
        if (each->dtype() != DType::f32 || each->shape().size() != 2) fail("is not a matrix of type f32");
    const int64_t n_out = pair.is_table ? n_in : n_rows;
    if (!pair.a && (b[0] != n_rows || b[1] != n_in))
        fail(cat("is ", to_string(b), ": expected [", n_rows, ", ", n_in, "]"));
    if (pair.a) {
        const Shape &a = pair.a->shape();
        const int64_t rank = b[1];
        const Shape expected = pair.is_table ? Shape{n_rows, rank} : Shape{rank, n_in};
        if (a != expected || b[0] != n_out)
            fail(cat("is ", to_string(a), " and ", to_string(b), ": expected ",
                     pair.is_table ? cat("[", n_rows, ", rank]") : cat("[rank, ", n_in, "]"), " and [", n_out,
                     ", rank]"));
    }
    if (pair.bias && pair.bias->shape() != Shape{n_out}) fail(cat("has a bias ", to_string(pair.bias->shape())));
    if (pair.lengths && pair.lengths->shape() != Shape{4, n_out})
        fail(cat("has lengths ", to_string(pair.lengths->shape())));
}

Tensor converted(const Tensor &tensor, DType dtype) {
    return quantize(reinterpret_cast<const float *>(tensor.data()), tensor.shape(), dtype, {}, 1);
}

std::vector<float> numbers(const Tensor &tensor, int64_t begin, int64_t end) {
    const auto *from = reinterpret_cast<const float *>(tensor.data());
    return {from + begin, from + end};
}

// One product or lookup that a pair changes.
struct Site {
    WeightRef weight;
    const AdapterPair *pair;
    int64_t first_row; // in the matrix
    AdaptedUse use() const { return {weight.get(), pair->is_table}; }
    int64_t n_rows() const { return weight->tensor.shape()[0]; }
    int64_t n_in() const { return weight->tensor.shape()[1]; }
    bool is_f32() const { return weight->tensor.dtype() == DType::f32; }
    DType dtype() const { return is_f32() ? DType::f32 : DType::bf16; } // on the CPU
    // The halves that are read as rows, and that are multiplied.
    const Tensor *rows() const { return pair->a ? &*pair->a : pair->is_table ? &pair->b : nullptr; }
    std::optional<Tensor> product() const {
        if (!pair->is_table) return pair->b.part(first_row, first_row + n_rows());
        return pair->a ? std::optional(pair->b) : std::nullopt;
    }
    PackedWeights packed(const Tensor &matrix) const {
        return {is_f32() ? WeightFormat::f32 : WeightFormat::bf16, matrix.shape()[0], matrix.shape()[1], nullptr};
    }
    size_t rows_bytes() const {
        if (rows() == nullptr) return 0;
        return whole_lines(static_cast<size_t>(rows()->shape()[0]) * row_bytes(dtype(), rows()->shape()[1]));
    }
    size_t product_bytes() const {
        const auto found = product();
        return found ? whole_lines(static_cast<size_t>(packed(*found).size_bytes())) : 0;
    }
    std::vector<float> bias() const {
        return pair->bias ? numbers(*pair->bias, first_row, first_row + n_rows()) : std::vector<float>();
    }
    RowLengths lengths() const {
        if (!pair->lengths) return {};
        const auto row = [&](int64_t i) {
            const int64_t begin = i * pair->lengths->shape()[1] + first_row;
            return numbers(*pair->lengths, begin, begin + n_rows());
        };
        return {row(0), row(1), row(2), row(3)};
    }
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
        for (const AdapterPair &pair : pairs) by_name_[{pair.matrix, pair.is_table}].push_back(&pair);
    }

    std::shared_ptr<LowRankAdapter> make() {
        const std::vector<Site> on_cpu = sites_of(products_.on_cpu), on_devices = sites_of(products_.on_devices);
        for (const AdapterPair &pair : pairs_) {
            const auto found = sizes_.find(&pair);
            if (found == sizes_.end())
                throw UnsupportedError("adapter", cat("no ", pair.is_table ? "lookup of tokens" : "product",
                                                      " of the model reads '", pair.matrix, "'"));
            check(pair, found->second.n_in, found->second.n_rows);
        }
        if (!on_cpu.empty()) pack(on_cpu);
        copy(on_devices);
        return made_;
    }

  private:
    std::vector<Site> sites_of(const std::vector<AdaptedWeights::Use> &uses) {
        std::vector<Site> sites;
        std::set<std::pair<const Weight *, bool>> seen;
        for (const auto &[weight, is_table] : uses) {
            if (!seen.insert({weight.get(), is_table}).second) continue;
            const MatrixRows rows = matrix_rows(*weight);
            const auto found = by_name_.find({rows.tensor, is_table});
            if (found == by_name_.end()) continue;
            if (found->second.size() > 1) throw ShapeError("adapter", cat("several pairs for ", rows.tensor));
            const AdapterPair *pair = found->second.front();
            const Shape &shape = weight->tensor.shape();
            const int64_t end = rows.first_row + shape[0];
            check(*pair, shape[1], std::max(pair->n_rows(), end));
            Size &size = sizes_[pair];
            size = {std::max(size.n_rows, end), shape[1]};
            sites.push_back({weight, pair, rows.first_row});
            made_->weights.push_back(weight);
        }
        return sites;
    }

    void pack(const std::vector<Site> &sites) {
        auto packed_pairs = std::make_shared<CpuPairs>();
        std::unordered_map<const AdapterPair *, std::optional<Matrix>> shared; // parts of one matrix read one A
        size_t size_bytes = 0;
        for (const Site &site : sites) {
            if (shared.try_emplace(site.pair).second) size_bytes += site.rows_bytes();
            size_bytes += site.product_bytes();
        }
        packed_pairs->memory_ = new_pages(size_bytes, true);
        if (!packed_pairs->memory_)
            throw CapacityError("adapter", cat("out of memory: ", size_bytes, " bytes of an adapter"));
        uint8_t *next = packed_pairs->memory_.get();
        for (const Site &site : sites) {
            std::optional<Matrix> &a = shared[site.pair];
            if (const Tensor *rows = site.rows(); rows != nullptr && !a) {
                const Tensor kept = converted(*rows, site.dtype());
                std::memcpy(next, kept.data(), kept.size_bytes());
                const int64_t n_in = rows->shape()[1];
                a = {{}, file_rows(site.pair->matrix, site.dtype(), next, n_in), rows->shape()[0], n_in};
                next += site.rows_bytes();
            }
            CpuPairs::Pair &pair = packed_pairs->pairs_[site.use()];
            pair = {a, std::nullopt, site.pair->factor, site.bias(), site.lengths()};
            made_->size_bytes += (pair.bias.size() + 4 * pair.lengths.lengths.size()) * sizeof(float);
            if (const auto product = site.product()) {
                const Tensor b = converted(*product, site.dtype());
                PackedWeights packed = site.packed(b);
                for (int64_t tile = 0; tile < packed.n_tiles(); ++tile)
                    pack_tile(packed, b, tile, next + tile * packed.tile_bytes());
                packed.data = next;
                next += site.product_bytes();
                pair.b = packed_matrix(*kernels_, packed);
            }
        }
        made_->on_cpu = std::move(packed_pairs);
        made_->size_bytes += size_bytes;
    }

    static Tensor times(const Tensor &given, float factor, DType dtype) {
        std::vector<float> values = numbers(given, 0, given.n_elements());
        for (float &value : values) value *= factor;
        return quantize(values.data(), given.shape(), dtype, {}, 1);
    }

    void copy(const std::vector<Site> &sites) {
        std::unordered_map<const AdapterPair *, Tensor> shared;
        for (const Site &site : sites) {
            const DType dtype = products_.devices_have_bf16 ? site.dtype() : DType::f32;
            const AdapterPair &given = *site.pair;
            DevicePair made{{}, site.lengths()};
            if (given.a) {
                auto a = shared.find(&given);
                if (a == shared.end()) {
                    a = shared.emplace(&given, converted(*given.a, dtype)).first;
                    made_->size_bytes += a->second.size_bytes();
                }
                made.parts[DevicePair::a] = a->second;
            }
            const Tensor &kept = made.parts[given.a ? DevicePair::b : DevicePair::whole].emplace(
                times(given.is_table ? given.b : *site.product(), given.factor, dtype));
            made_->size_bytes += kept.size_bytes();
            if (const std::vector<float> bias = site.bias(); !bias.empty())
                made.parts[DevicePair::bias] =
                    quantize(bias.data(), {1, static_cast<int64_t>(bias.size())}, DType::f32, {}, 1);
            made_->has_lengths = made_->has_lengths || !made.lengths.empty();
            made_->for_devices.emplace(site.use(), std::move(made));
        }
    }

    struct Size {
        int64_t n_rows = 0, n_in = 0; // at least so many
    };
    const KernelSet *kernels_;
    const AdaptedWeights &products_;
    const std::vector<AdapterPair> &pairs_;
    std::shared_ptr<LowRankAdapter> made_;
    std::map<std::pair<std::string, bool>, std::vector<const AdapterPair *>> by_name_;
    std::unordered_map<const AdapterPair *, Size> sizes_; // the rows and columns of its matrix
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
