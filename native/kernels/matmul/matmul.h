// Matrix products on the CPU: y = x W^T.
//
// - Packed weights of 16 or 32 bits: single precision, except with AVX512_BF16, which multiplies BF16.  F16 weights are
//   then rounded to BF16 when they are packed (no loss for models trained in BF16), and so are the activations for F16
//   and BF16 weights.
// - Packed quantized weights: activations are rounded to 8 bits with a scale per 32 columns (largest magnitude / 127),
//   as in ggml.  Products of codes are summed exactly, in integers, then scaled and added in single precision, group by
//   group in the order of the columns.
// - Types without a packed layout: rows are multiplied one by one, in the file's form.
//
// So the bits of a row depend on that row alone: not on other rows, the part it is computed in, or the number of
// workers.
//
// One exception: on AMX, products of many rows round quantized weights and activations to BF16.  That is several times
// faster and rounds activations less, but a row's bits then depend on whether the batch has at least many_rows.
// Deterministic mode multiplies codes everywhere.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/kernel_set.h"
#include "kernels/matmul/packed_weights.h"
#include "kernels/rows/row_kernels.h"

namespace quire {

// Quantized rows of activations, for products of codes.  Rows are padded with zeros to a multiple of 64 columns.
struct QuantizedRows {
    int64_t n_in;
    uint8_t *data; // size_bytes(n_rows, n_in) bytes, 64-byte aligned

    static int64_t padded(int64_t n_in) { return (n_in + 63) / 64 * 64; }
    static int64_t n_groups(int64_t n_in) { return padded(n_in) / group_columns; }
    // A row has its codes, then per group of 32 columns 28 bytes: the scale and the sum times the scale (floats), the
    // negated sums of the group and of both halves of 16 (int32), and the sums of the halves times the scale.
    static int64_t row_bytes(int64_t n_in) { return padded(n_in) + (n_groups(n_in) * 28 + 63) / 64 * 64; }
    static int64_t size_bytes(int64_t n_rows, int64_t n_in) { return n_rows * row_bytes(n_in); }

    int8_t *codes(int64_t row) const { return reinterpret_cast<int8_t *>(data + row * row_bytes(n_in)); }
    float *scales(int64_t row) const { return reinterpret_cast<float *>(codes(row) + padded(n_in)); }
    float *scaled_sums(int64_t row) const { return scales(row) + n_groups(n_in); }
    int32_t *negated_sums(int64_t row) const { return reinterpret_cast<int32_t *>(scales(row) + 2 * n_groups(n_in)); }
    int32_t *negated_half_sums(int64_t row) const { return negated_sums(row) + n_groups(n_in); }
    float *scaled_half_sums(int64_t row) const { return scales(row) + 5 * n_groups(n_in); }
};

// Quantize one row [n_in] to the bytes of a row of QuantizedRows.
void quantize_row(const KernelSet &kernels, const float *x, int64_t n_in, uint8_t *to);

// Rows of a matrix in the form they have in a model file, and the routines for their type.
struct FileRows {
    const uint8_t *data = nullptr;
    size_t row_bytes = 0, x_row_bytes = 0;
    void (*to_floats)(const void *row, float *out, int64_t n) = nullptr; // null if the rows are floats
    void (*round)(const float *x, void *to,
                  int64_t n) = nullptr; // rounds activations for `dot`; null if it takes floats
    void (*dot)(int n, float *sum, size_t, const void *row, size_t, const void *x, size_t, int n_rows) = nullptr;
};

// The form of activations that a matrix needs; `rounded` is the result of FileRows::round.
enum class RowForm { floats, bf16, codes, rounded };

// Rows of BF16 are padded with zeros to an odd number of registers, so that the same columns of several rows map to
// different sets of a cache.
constexpr int64_t bf16_row_bytes(int64_t n_in) { return ((n_in + 31) / 32 | 1) * 64; }
// From this many rows on, quantized weights may be multiplied as BF16.  With fewer rows, converting them to BF16 takes
// longer than the whole product of codes.
inline constexpr int many_rows = 25;

// A matrix [n_out, n_in] of a product: packed if packed.data is set, otherwise in rows.
struct Matrix {
    PackedWeights packed{};
    FileRows rows{};
    int64_t n_out = 0, n_in = 0;
    // Packed weights take activations as BF16 always, or (quantized weights) from many_rows on.
    bool takes_bf16 = false, takes_many_as_bf16 = false;

    // The form for a batch of n_rows.
    RowForm form(int n_rows) const {
        if (packed.data == nullptr) return rows.round == nullptr ? RowForm::floats : RowForm::rounded;
        if (takes_bf16) return RowForm::bf16;
        if (packed.is_float()) return RowForm::floats;
        return n_rows >= many_rows && takes_many_as_bf16 ? RowForm::bf16 : RowForm::codes;
    }
    bool rounds() const { return form(1) != RowForm::floats; } // does not depend on the number of rows
    int64_t x_row_bytes(RowForm form) const; // size of a row of activations in that form
    int64_t x_row_bytes() const; // the largest of all forms it may need
    bool reads_as(const Matrix &other) const { // true if both need activations in the same form
        return n_in == other.n_in && form(1) == other.form(1) &&
               (form(1) != RowForm::rounded || rows.round == other.rows.round);
    }
    int64_t size_bytes() const {
        return packed.data != nullptr ? packed.size_bytes() : n_out * int64_t(rows.row_bytes);
    }
};

// A packed matrix, which only these kernels may multiply.
Matrix packed_matrix(const KernelSet &kernels, const PackedWeights &weights);
// Convert a row of activations [n_in] to a form that the matrix needs; a no-op for floats.
void round_row(const KernelSet &kernels, const Matrix &matrix, RowForm form, const float *x, uint8_t *to);
// Write row `row` of the matrix as floats, [n_in].
void matrix_row(const Matrix &matrix, int64_t row, float *out);

// One matrix of a product, with its inputs and output.
struct Factor {
    const Matrix *matrix;
    const uint8_t *x; // [n_rows] in the form that the matrix needs for form_rows
    const float *bias; // [n_out], or null
    float *out; // [n_rows, n_out]
};

// The columns of a result that are handed out together, a strip; the last strip may have fewer.
inline constexpr int64_t strip_columns = float_tile_rows;
inline int64_t n_strips(int64_t n_out) { return (n_out + strip_columns - 1) / strip_columns; }

// Several products with the same number of rows, computed together.
struct Product {
    std::vector<Factor> factors;
    int n_rows = 0;
    int form_rows = 0; // the number of rows for which the form of x was chosen
    const float *residual = nullptr; // [n_rows, n_out], added to the result; only with one factor
    std::optional<Activation> activation; // with two factors of equal n_out: first = activation(first) * second
    float *maxima = nullptr; // [n_rows, n_strips(n_out)], the largest number of each strip; only with one factor
};

// A product, cut into items for n_workers.  Any cut gives the same bits.
class ProductItems {
  public:
    ProductItems(const KernelSet &kernels, const Product &product, int n_workers); // both must outlive it
    int size() const { return n_items_; }
    void run(int item) const;

  private:
    struct Units { // strips of output columns
        int64_t begin, end;
    };
    void run_units(Units units, int first_row, int n_rows) const;
    bool by_tiles() const;
    const KernelSet &kernels_;
    const Product &product_;
    int64_t n_units_ = 0, n_together_ = 1; // units per item
    std::vector<int64_t> run_ends_; // for few rows: the end of each item's units
    int rows_, n_row_parts_, n_items_;
};

// The estimated cost of a product: the bytes it reads, or could read in the time it computes.
int64_t product_cost_bytes(const Product &product);

// A product with one packed matrix, for tests.  Each worker calls it with the same arguments; items are taken from the
// counter `next`, which is zero before the first call.
struct Matmul {
    PackedWeights weights;
    const float *raw; // [n_rows, n_in]; if the matrix needs another form, each worker converts its rows itself; or null
    const uint8_t *x; // if `raw` is null: [n_rows] in the form that the matrix needs
    int n_rows;
    float *out; // [n_rows, n_out]
};
void packed_matmul(const KernelSet &kernels, const Matmul &matmul, std::atomic<int> &next, int n_workers);
// Convert a worker's share of the rows [n_rows, n_in] to the form that the matrix needs.
void round_rows(const KernelSet &kernels, const Matrix &matrix, const float *x, int n_rows, int worker, int n_workers,
                uint8_t *to);

} // namespace quire
