#include "kernels/matmul/matmul.h"

#include <algorithm>
#include <cstring>

#include "core/large_pages.h"
#include "kernels/attention/attention_kernels.h"
#include "kernels/matmul/matmul_kernels.h"

namespace quire {
namespace {

static_assert(strip_columns == strip_tiles * tile_rows);
// The most rows of an item, and the step in which they are reduced until they fit in the second-level cache with a
// strip of weights.  Both are multiples of the row blocks of every instruction set.
constexpr int part_rows = 192, part_row_step = 48;
constexpr int64_t part_bytes = 768 << 10;
// BF16 by tiles: weights are converted for all rows of an item, and an item has this many strips, which share the rows
// read.
constexpr int tile_strips = bf16_part_tiles / strip_tiles, tile_row_step = 32;
// Up to this many rows, reading weights dominates, and long runs of them are read fastest.
constexpr int max_few_rows = few_packed_rows;
static_assert(many_rows > few_packed_rows);
// The longest run for that many rows, in strips, so that a late worker does not delay the others for long.
constexpr int64_t longest_run = 16;

// For quantized weights, a strip of unpacked tiles: codes of one byte, and a scale and a minimum of 4 bytes per 16
// columns.  For floats, the sums of one tile.
size_t scratch_bytes(const PackedWeights &weights) {
    if (weights.is_float()) return part_rows * float_tile_rows * sizeof(float);
    const int64_t columns = (weights.n_in + 255) / 256 * 256;
    return static_cast<size_t>(strip_tiles * tile_rows * (columns + columns / 16 * 8));
}

void round_to_bf16(const KernelSet &kernels, const float *x, int64_t n_in, uint8_t *to) {
    kernels.attention(KvType::bf16, KvType::bf16).to_bf16(x, reinterpret_cast<uint16_t *>(to), static_cast<int>(n_in));
    const int64_t size_bytes = n_in * static_cast<int64_t>(sizeof(uint16_t));
    std::memset(to + size_bytes, 0, static_cast<size_t>(bf16_row_bytes(n_in) - size_bytes));
}

} // namespace

Matrix packed_matrix(const KernelSet &kernels, const PackedWeights &weights) {
    Matrix matrix{weights, {}, weights.n_out, weights.n_in};
    matrix.takes_bf16 = weights.format == WeightFormat::bf16 && kernels.multiplies_bf16();
    matrix.takes_many_as_bf16 = kernels.determinism_costs() && !kernels.is_deterministic();
    return matrix;
}

void quantize_row(const KernelSet &kernels, const float *x, int64_t n_in, uint8_t *to) {
    QuantizedRows rows{n_in, to};
    kernels.matmul().quantize(x, 0, 1, rows);
}

int64_t Matrix::x_row_bytes() const {
    const int64_t size_bytes = x_row_bytes(form(1));
    return form(1) == RowForm::codes ? std::max(size_bytes, x_row_bytes(RowForm::bf16)) : size_bytes;
}

int64_t Matrix::x_row_bytes(RowForm form) const {
    switch (form) {
    case RowForm::codes: return QuantizedRows::row_bytes(n_in);
    case RowForm::bf16: return bf16_row_bytes(n_in);
    case RowForm::rounded: return static_cast<int64_t>(rows.x_row_bytes);
    default: return n_in * static_cast<int64_t>(sizeof(float));
    }
}

void round_row(const KernelSet &kernels, const Matrix &matrix, RowForm form, const float *x, uint8_t *to) {
    switch (form) {
    case RowForm::codes: return quantize_row(kernels, x, matrix.n_in, to);
    case RowForm::bf16: return round_to_bf16(kernels, x, matrix.n_in, to);
    case RowForm::rounded: return matrix.rows.round(x, to, matrix.n_in);
    default: break;
    }
}

void matrix_row(const Matrix &matrix, int64_t row, float *out) {
    if (matrix.packed.data != nullptr) return unpack_row(matrix.packed, row, out);
    const uint8_t *from = matrix.rows.data + static_cast<size_t>(row) * matrix.rows.row_bytes;
    if (matrix.rows.to_floats != nullptr) return matrix.rows.to_floats(from, out, matrix.n_in);
    std::memcpy(out, from, static_cast<size_t>(matrix.n_in) * sizeof(float));
}

namespace {

// A rectangle of a factor's result: some columns of some rows.
struct Piece {
    int64_t first_column, end_column;
    int first_row, n_rows;
    RowForm form; // form of the activations
};

void multiply_packed(const KernelSet &kernels, const Factor &factor, const Piece &piece) {
    static thread_local AlignedMemory scratch;
    const FloatMatmulKernels &of_floats = kernels.float_matmul();
    const MatmulKernels &of_codes = kernels.matmul();
    const PackedWeights &weights = factor.matrix->packed;
    QuantizedRows x{weights.n_in, const_cast<uint8_t *>(factor.x)};
    MatmulPart part{};
    part.weights = &weights;
    part.out = factor.out;
    part.out_stride = weights.n_out;
    part.first_row = piece.first_row;
    part.n_rows = piece.n_rows;
    const int64_t end = (piece.end_column + weights.rows_of_tile() - 1) / weights.rows_of_tile();
    int64_t strip = weights.is_float() ? 1 : strip_tiles;
    size_t scratch_size = scratch_bytes(weights);
    auto multiply = weights.is_float() ? of_floats.multiply : of_codes.multiply;
    switch (piece.form) {
    case RowForm::floats: part.raw = reinterpret_cast<const float *>(factor.x); break;
    case RowForm::bf16:
        part.bf16 = reinterpret_cast<const uint16_t *>(factor.x);
        multiply = weights.is_float() ? of_floats.multiply_bf16 : of_codes.multiply_bf16;
        if (!weights.is_float() || of_floats.by_tiles) {
            strip = bf16_part_tiles * tile_rows / weights.rows_of_tile();
            scratch_size = static_cast<size_t>(bf16_scratch_bytes);
        }
        break;
    default: part.x = &x;
    }
    part.scratch = scratch.at_least(scratch_size);
    for (part.first_tile = piece.first_column / weights.rows_of_tile(); part.first_tile < end;
         part.first_tile += strip) {
        part.n_tiles = std::min(strip, end - part.first_tile);
        multiply(part);
    }
}

void multiply_rows(const Factor &factor, const Piece &piece) {
    const Matrix &matrix = *factor.matrix;
    const int64_t x_bytes = matrix.x_row_bytes(piece.form);
    for (int64_t column = piece.first_column; column < piece.end_column; ++column) {
        const uint8_t *weights = matrix.rows.data + static_cast<size_t>(column) * matrix.rows.row_bytes;
        for (int64_t row = piece.first_row; row < piece.first_row + piece.n_rows; ++row) {
            matrix.rows.dot(static_cast<int>(matrix.n_in), factor.out + row * matrix.n_out + column, 0, weights, 0,
                            factor.x + row * x_bytes, 0, 1);
        }
    }
}

void multiply(const KernelSet &kernels, const Factor &factor, const Piece &piece) {
    factor.matrix->packed.data != nullptr ? multiply_packed(kernels, factor, piece) : multiply_rows(factor, piece);
    if (factor.bias == nullptr) return;
    const int64_t n_out = factor.matrix->n_out, n = piece.end_column - piece.first_column;
    for (int64_t row = piece.first_row; row < piece.first_row + piece.n_rows; ++row) {
        float *out = factor.out + row * n_out + piece.first_column;
        kernels.rows().add(out, factor.bias + piece.first_column, out, n);
    }
}

} // namespace

int64_t product_cost_bytes(const Product &product) {
    constexpr int64_t rows_for_free = 4; // about as many rows as are computed in the time of reading the weights
    int64_t size_bytes = 0;
    for (const Factor &factor : product.factors) size_bytes += factor.matrix->size_bytes();
    return size_bytes * (product.n_rows + rows_for_free - 1) / rows_for_free;
}

ProductItems::ProductItems(const KernelSet &kernels, const Product &product, int n_workers)
    : kernels_(kernels), product_(product) {
    int64_t row_bytes = 1;
    for (const Factor &factor : product.factors) {
        if (!product.activation || &factor == &product.factors.front()) n_units_ += n_strips(factor.matrix->n_out);
        row_bytes = std::max(row_bytes, factor.matrix->x_row_bytes(factor.matrix->form(product.form_rows)));
    }
    if (by_tiles()) {
        const int n_parts = (product.n_rows + bf16_part_rows - 1) / bf16_part_rows;
        rows_ = (product.n_rows / std::max(n_parts, 1) + tile_row_step) / tile_row_step * tile_row_step;
        rows_ = std::min(rows_, bf16_part_rows);
        n_together_ = std::clamp<int64_t>(n_units_ * n_parts / (int64_t{3} * n_workers), 1, tile_strips);
    } else {
        rows_ = static_cast<int>(std::clamp<int64_t>(part_bytes / row_bytes, part_row_step, part_rows));
        rows_ -= rows_ % part_row_step;
    }
    n_row_parts_ = (product.n_rows + rows_ - 1) / rows_;
    n_items_ = static_cast<int>((n_units_ + n_together_ - 1) / n_together_) * n_row_parts_;
    // With several parts of rows, strips are handed out one by one, and the next strip is another worker's to prefetch.
    if (product.n_rows > max_few_rows && (n_row_parts_ > 1 || by_tiles())) return;
    // Long runs first, short ones last, so that all workers finish at about the same time.
    const int64_t longest = longest_run * max_few_rows / std::max(product.n_rows, max_few_rows);
    for (int64_t end = 0; end < n_units_;) {
        end += std::clamp<int64_t>((n_units_ - end) / (int64_t{3} * n_workers), 1, longest);
        run_ends_.push_back(end);
    }
    n_items_ = static_cast<int>(run_ends_.size());
}

// True if all factors are multiplied as BF16 by tiles.
bool ProductItems::by_tiles() const {
    return std::all_of(product_.factors.begin(), product_.factors.end(), [&](const Factor &factor) {
        return factor.matrix->form(product_.form_rows) == RowForm::bf16 &&
               (!factor.matrix->packed.is_float() || kernels_.float_matmul().by_tiles);
    });
}

void ProductItems::run(int item) const {
    if (!run_ends_.empty()) {
        const auto i = static_cast<size_t>(item);
        return run_units({i == 0 ? 0 : run_ends_[i - 1], run_ends_[i]}, 0, product_.n_rows);
    }
    // Consecutive items share the rows of a part, which are reused, and have different weights.
    const int64_t n_groups = (n_units_ + n_together_ - 1) / n_together_, unit = item % n_groups * n_together_;
    const int first_row = static_cast<int>(item / n_groups) * rows_;
    run_units({unit, std::min(unit + n_together_, n_units_)}, first_row, std::min(rows_, product_.n_rows - first_row));
}

void ProductItems::run_units(Units units, int first_row, int n_rows) const {
    int64_t first = 0; // first unit of the factor
    for (const Factor &factor : product_.factors) {
        const int64_t n = n_strips(factor.matrix->n_out);
        const int64_t begin = std::max(units.begin - first, int64_t{0}), end = std::min(units.end - first, n);
        first += product_.activation ? 0 : n;
        if (begin >= end) continue;
        const int64_t n_out = factor.matrix->n_out;
        const Piece piece{begin * strip_columns, std::min(end * strip_columns, n_out), first_row, n_rows,
                          factor.matrix->form(product_.form_rows)};
        multiply(kernels_, factor, piece);
        const bool is_last = &factor == &product_.factors.back();
        for (int64_t row = first_row; row < first_row + n_rows; ++row) {
            const int64_t at = row * n_out + piece.first_column, size = piece.end_column - piece.first_column;
            if (product_.residual != nullptr)
                kernels_.rows().add(product_.residual + at, factor.out + at, factor.out + at, size);
            float *gate = product_.factors.front().out + at;
            if (product_.activation && is_last)
                kernels_.rows().gate(*product_.activation, gate, factor.out + at, gate, size);
            if (product_.maxima == nullptr) continue;
            for (int64_t i = 0; i < size; i += strip_columns) {
                product_.maxima[row * n + begin + i / strip_columns] =
                    kernels_.rows().largest(factor.out + at + i, std::min(strip_columns, size - i));
            }
        }
    }
}

void round_rows(const KernelSet &kernels, const Matrix &matrix, const float *x, int n_rows, int worker, int n_workers,
                uint8_t *to) {
    const int64_t first = int64_t{n_rows} * worker / n_workers, last = int64_t{n_rows} * (worker + 1) / n_workers;
    const RowForm form = matrix.form(n_rows);
    const int64_t row_bytes = matrix.x_row_bytes(form);
    for (int64_t row = first; row < last; ++row)
        round_row(kernels, matrix, form, x + row * matrix.n_in, to + row * row_bytes);
}

void packed_matmul(const KernelSet &kernels, const Matmul &matmul, std::atomic<int> &next, int n_workers) {
    static thread_local AlignedMemory rounded;
    const PackedWeights &weights = matmul.weights;
    const Matrix matrix = packed_matrix(kernels, weights);
    const uint8_t *x = matmul.raw != nullptr ? reinterpret_cast<const uint8_t *>(matmul.raw) : matmul.x;
    if (matmul.raw != nullptr && matrix.rounds()) {
        uint8_t *own = rounded.at_least(static_cast<size_t>(matmul.n_rows * matrix.x_row_bytes()));
        round_rows(kernels, matrix, matmul.raw, matmul.n_rows, 0, 1, own);
        x = own;
    }
    Product product;
    product.factors = {{&matrix, x, nullptr, matmul.out}};
    product.n_rows = product.form_rows = matmul.n_rows;
    const ProductItems items(kernels, product, n_workers);
    for (int item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items.size();) items.run(item);
}

} // namespace quire
