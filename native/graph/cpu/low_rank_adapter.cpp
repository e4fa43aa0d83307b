#include "graph/cpu/low_rank_adapter.h"

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
    DType dtype; // that the pair is kept in
    int64_t rank() const { return pair->a.shape()[0]; }
    int64_t n_in() const { return pair->a.shape()[1]; }
    int64_t n_out() const { return weight->tensor.shape()[0]; }
    PackedWeights form_of_b() const {
        return {dtype == DType::f32 ? WeightFormat::f32 : WeightFormat::bf16, n_out(), rank(), nullptr};
    }
    size_t a_bytes() const { return whole_lines(static_cast<size_t>(rank()) * row_bytes(dtype, n_in())); }
    size_t b_bytes() const { return whole_lines(static_cast<size_t>(form_of_b().size_bytes())); }
};

std::vector<Site> sites_of(const std::vector<WeightRef> &products, const std::vector<AdapterPair> &pairs) {
    std::unordered_map<std::string, std::vector<const AdapterPair *>> by_name;
    for (const AdapterPair &pair : pairs) by_name[pair.matrix].push_back(&pair);
    std::vector<Site> sites;
    std::unordered_map<const AdapterPair *, int64_t> n_rows; // the matrix has at least so many
    std::set<const Weight *> seen;
    for (const WeightRef &weight : products) {
        if (!seen.insert(weight.get()).second) continue;
        const MatrixRows rows = matrix_rows(*weight);
        const auto found = by_name.find(rows.tensor);
        if (found == by_name.end()) continue;
        if (found->second.size() > 1) throw ShapeError("adapter", cat("several pairs for ", rows.tensor));
        const AdapterPair *pair = found->second.front();
        const Shape &shape = weight->tensor.shape();
        const int64_t end = rows.first_row + shape[0];
        check_halves(*pair, shape[1], std::max(pair->b.shape()[0], end));
        n_rows[pair] = std::max(n_rows[pair], end);
        const DType dtype = weight->tensor.dtype() == DType::f32 ? DType::f32 : DType::bf16;
        sites.push_back({weight, pair, rows.first_row, dtype});
    }
    for (const AdapterPair &pair : pairs) {
        const auto found = n_rows.find(&pair);
        if (found == n_rows.end())
            throw UnsupportedError("adapter", cat("no product of the model reads '", pair.matrix, "'"));
        check_halves(pair, pair.a.shape()[1], found->second);
    }
    return sites;
}

} // namespace

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

LowRankAdapter::LowRankAdapter(std::string identity, const KernelSet &kernels, const std::vector<WeightRef> &products,
                               const std::vector<AdapterPair> &pairs)
    : identity_(std::move(identity)) {
    const std::vector<Site> sites = sites_of(products, pairs);
    std::unordered_map<const AdapterPair *, Matrix> shared; // parts of one matrix read one A
    for (const Site &site : sites) {
        if (shared.try_emplace(site.pair).second) size_bytes_ += site.a_bytes();
        size_bytes_ += site.b_bytes();
    }
    memory_ = new_pages(std::max<size_t>(size_bytes_, 1), true);
    if (!memory_) throw CapacityError("adapter", cat("out of memory: ", size_bytes_, " bytes of an adapter"));
    uint8_t *next = memory_.get();
    for (const Site &site : sites) {
        Matrix &a = shared[site.pair];
        if (a.rows.data == nullptr) {
            const Tensor kept = converted(site.pair->a, site.dtype);
            std::memcpy(next, kept.data(), kept.size_bytes());
            a = {{}, file_rows(site.pair->matrix, site.dtype, next, site.n_in()), site.rank(), site.n_in()};
            next += site.a_bytes();
        }
        const Tensor b = converted(site.pair->b.part(site.first_row, site.first_row + site.n_out()), site.dtype);
        PackedWeights packed = site.form_of_b();
        for (int64_t tile = 0; tile < packed.n_tiles(); ++tile)
            pack_tile(packed, b, tile, next + tile * packed.tile_bytes());
        packed.data = next;
        next += site.b_bytes();
        weights_.push_back(site.weight);
        pairs_.emplace(site.weight.get(), Pair{a, packed_matrix(kernels, packed), site.pair->factor});
    }
}

} // namespace quire
