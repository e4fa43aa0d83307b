#include "graph/operations/fused/adapted_products.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/large_pages.h"
#include "graph/cpu/cpu_pairs.h"

namespace quire {
namespace {

constexpr int64_t part_columns = 1024; // handed out together: whole tiles
constexpr size_t alone_bytes = 96 << 10; // less is not worth waking another thread for

// A thread's scratch; calls with different tags do not share it.
template <int tag> uint8_t *thread_scratch(size_t size_bytes) {
    static thread_local AlignedMemory memory;
    return memory.at_least(size_bytes);
}

void multiply_chunk(const KernelSet &kernels, const Matrix &matrix, const uint8_t *x, int n_rows, float *out) {
    Product product;
    product.factors.push_back({&matrix, x, nullptr, out});
    product.n_rows = product.form_rows = n_rows;
    const ProductItems items(kernels, product, 1);
    for (int item = 0; item < items.size(); ++item) items.run(item);
}

} // namespace

struct AdapterSums::Work {
    const AdapterRows *rows;
    const AdapterChunk *chunk;
    const AdaptedProduct *product;
    const CpuPairs::Pair *pair;
    size_t h_at; // where its rows of A x lie
    int n_rows() const { return static_cast<int>(chunk->n()); }
    int32_t row(int i) const { return rows->rows[chunk->begin + static_cast<size_t>(i)]; }
    float given_scale(int i) const { return rows->scales[chunk->begin + static_cast<size_t>(i)]; }
    float scale(int i) const { return given_scale(i) * pair->factor; }
    size_t h_row_bytes() const {
        return pair->b ? static_cast<size_t>(pair->b->x_row_bytes(pair->b->form(n_rows()))) : 0;
    }
    int n_parts() const { return pair->b ? static_cast<int>((pair->b->n_out + part_columns - 1) / part_columns) : 1; }
    // Row x after the step, in place or in `made`.
    const float *stepped(const KernelSet &kernels, int i, int64_t n, float *made) const {
        const float *from = product->x + row(i) * n;
        if (!*product->step) return from;
        product->step->apply(kernels.rows(), from, made, n);
        return made;
    }
    // Rows x of the chunk in the form that A reads.
    uint8_t *round_rows(const KernelSet &kernels) const {
        const Matrix &a = *pair->a;
        const RowForm form = a.form(n_rows());
        const auto x_bytes = static_cast<size_t>(a.x_row_bytes(form)), n = static_cast<size_t>(n_rows());
        const size_t floats_bytes = static_cast<size_t>(a.n_in) * sizeof(float);
        uint8_t *x = thread_scratch<0>(x_bytes * n + floats_bytes);
        auto *floats = reinterpret_cast<float *>(x + x_bytes * n);
        for (int i = 0; i < n_rows(); ++i) {
            const float *from = stepped(kernels, i, a.n_in, floats);
            uint8_t *to = x + static_cast<size_t>(i) * x_bytes;
            if (form == RowForm::floats)
                std::memcpy(to, from, floats_bytes);
            else
                round_row(kernels, a, form, from, to);
        }
        return x;
    }
    // Scales a row that B reads, and rounds it.
    void round_h(const KernelSet &kernels, int i, const float *made, float *scaled, uint8_t *h) const {
        const Matrix &b = *pair->b;
        const RowForm form = b.form(n_rows());
        uint8_t *to = h + h_at + static_cast<size_t>(i) * h_row_bytes();
        kernels.rows().scale(made, scale(i), scaled, b.n_in);
        if (form == RowForm::floats)
            std::memcpy(to, scaled, static_cast<size_t>(b.n_in) * sizeof(float));
        else
            round_row(kernels, b, form, scaled, to);
    }
    // Without a product by A: its rows are looked up, or B reads x.
    void read_rows(const KernelSet &kernels, uint8_t *h) const {
        if (!pair->b) return;
        const int64_t n = pair->b->n_in;
        auto *made = reinterpret_cast<float *>(thread_scratch<1>(static_cast<size_t>(2 * n) * sizeof(float)));
        for (int i = 0; i < n_rows(); ++i) {
            const float *from = made;
            if (product->ids != nullptr)
                matrix_row(*pair->a, product->ids[row(i)], made);
            else
                from = stepped(kernels, i, n, made);
            round_h(kernels, i, from, made + n, h);
        }
    }
};

AdapterSums::AdapterSums(const CpuRun &run, Lead lead, std::span<const AdaptedProduct> products)
    : run_(run), products_(products) {
    for (const AdapterRows &rows : run.adapters(lead)) {
        add_level(rows, products);
        level_ends_.push_back(works_.size());
    }
    if (!works_.empty()) h_ = thread_scratch<3>(h_bytes_);
}

AdapterSums::~AdapterSums() = default;

void AdapterSums::add_level(const AdapterRows &rows, std::span<const AdaptedProduct> products) {
    for (const AdapterChunk &chunk : rows.chunks) {
        const CpuPairs *pairs = chunk.adapter->on_cpu.get();
        if (pairs == nullptr) continue;
        const size_t before = works_.size();
        for (const AdaptedProduct &product : products) {
            const CpuPairs::Pair *pair = pairs->find({product.weight, product.ids != nullptr});
            if (pair == nullptr) continue;
            const Work &work = works_.emplace_back(Work{&rows, &chunk, &product, pair, h_bytes_});
            h_bytes_ += (work.h_row_bytes() * chunk.n() + 63) / 64 * 64;
            cost_bytes_ += static_cast<size_t>(pair->size_bytes());
            has_lengths_ = has_lengths_ || !pair->lengths.empty();
        }
        if (works_.size() > before) item_ends_.push_back(works_.size());
    }
}

void AdapterSums::multiply_by_a(int item) const {
    const auto at = static_cast<size_t>(item);
    const Work *rounded = nullptr, *multiplied = nullptr;
    uint8_t *x = nullptr;
    float *made = nullptr;
    for (size_t i = at == 0 ? 0 : item_ends_[at - 1]; i < item_ends_[at]; ++i) {
        const Work &work = works_[i];
        if (!work.pair->a || work.product->ids != nullptr) {
            work.read_rows(run_.kernels, h_);
            multiplied = nullptr; // its result lay in the same scratch
            continue;
        }
        const Matrix &a = *work.pair->a;
        if (rounded == nullptr || !a.reads_as(*rounded->pair->a)) {
            x = work.round_rows(run_.kernels);
            rounded = &work;
            multiplied = nullptr;
        }
        const int64_t n = a.n_out * work.n_rows();
        // Parts of one matrix share A.
        if (multiplied == nullptr || multiplied->pair->a->rows.data != a.rows.data) {
            made = reinterpret_cast<float *>(thread_scratch<1>(static_cast<size_t>(n + a.n_out) * sizeof(float)));
            multiply_chunk(run_.kernels, a, x, work.n_rows(), made);
            multiplied = &work;
        }
        for (int row = 0; row < work.n_rows(); ++row)
            work.round_h(run_.kernels, row, made + row * a.n_out, made + n, h_);
    }
}

// Adds some columns of B (A x) to the rows of a chunk.
void AdapterSums::add_part(const Work &work, int part) const {
    const CpuPairs::Pair &pair = *work.pair;
    const RowKernels &kernels = run_.kernels.rows();
    const int64_t n_out = pair.n_out(), first = pair.b ? part * part_columns : 0;
    const int64_t n = pair.b ? std::min(part_columns, n_out - first) : n_out;
    auto *made =
        reinterpret_cast<float *>(thread_scratch<2>(static_cast<size_t>(n * (work.n_rows() + 1)) * sizeof(float)));
    if (pair.b) {
        Matrix columns = *pair.b;
        columns.n_out = columns.packed.n_out = n;
        columns.packed.data += first / pair.b->packed.rows_of_tile() * pair.b->packed.tile_bytes();
        multiply_chunk(run_.kernels, columns, h_ + work.h_at, work.n_rows(), made);
    }
    float *factors = made + n * work.n_rows(); // for DoRA
    for (int i = 0; i < work.n_rows(); ++i) {
        float *out = work.product->out + work.row(i) * n_out + first, *sum = made + i * n;
        if (!pair.b) {
            matrix_row(*pair.a, work.product->ids[work.row(i)], sum);
            kernels.scale(sum, work.scale(i), sum, n);
        }
        kernels.add(out, sum, out, n);
        if (!pair.lengths.empty()) {
            const auto begin = static_cast<size_t>(first);
            if (i == 0 || work.given_scale(i) != work.given_scale(i - 1))
                pair.lengths.factors(work.given_scale(i), begin, begin + static_cast<size_t>(n), 0, factors);
            kernels.multiply(out, factors, out, n);
        }
        if (!pair.bias.empty()) kernels.add_scaled(pair.bias.data() + first, work.given_scale(i), out, n);
    }
}

bool AdapterSums::changes_lengths(size_t product, int row) const {
    return std::ranges::any_of(works_, [&](const Work &work) {
        if (work.product != &products_[product] || work.pair->lengths.empty()) return false;
        const auto *rows = work.rows->rows.data();
        return std::find(rows + work.chunk->begin, rows + work.chunk->end, row) != rows + work.chunk->end;
    });
}

void AdapterSums::add() const {
    std::vector<std::pair<const Work *, int>> parts;
    size_t begin = 0;
    for (const size_t end : level_ends_) { // a row's adapters are added in their order
        parts.clear();
        for (size_t i = begin; i < end; ++i)
            for (int part = 0; part < works_[i].n_parts(); ++part) parts.emplace_back(&works_[i], part);
        begin = end;
        const int n = static_cast<int>(parts.size());
        const int together = cost_bytes_ < alone_bytes ? n : 1;
        run_.team.for_each(n, together, [&](int i) {
            const auto &[work, part] = parts[static_cast<size_t>(i)];
            add_part(*work, part);
        });
    }
}

} // namespace quire
