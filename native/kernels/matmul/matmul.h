// Matrix products on the CPU: y = x W^T.
//
// With packed weights of 16 or 32 bits everything is single precision, but that AVX512_BF16 multiplies BF16: weights of
// F16 are rounded to it when they are packed (which loses nothing of models that were trained in BF16), and activations
// of weights of either type.  With packed quantized ones activations are rounded to 8 bits, 32 columns to a scale (largest
// magnitude / 127), as ggml's products do; products of codes are summed exactly, in integers, scaled and added in
// single precision, group by group in the order of the columns.  Rows of types without a layout of our own are
// multiplied one by one, as the file holds them.  So the bits of a row depend on that row alone: not on the other
// rows, the part it is computed in, nor the number of workers.
//
// One exception: on AMX, products of many rows round quantized weights and activations to BF16.  That is several times
// as fast and rounds activations less, but the bits of a row then depend on whether the batch has many_rows.  In
// deterministic mode products use codes everywhere.
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

// Rows of activations as the products of codes read them.  Rows are filled up to a multiple of 64 columns with zeros.
struct QuantizedRows {
    int64_t n_in;
    uint8_t *data; // size_bytes(n_rows, n_in) of them, 64-byte aligned

    static int64_t padded(int64_t n_in) { return (n_in + 63) / 64 * 64; }
    static int64_t n_groups(int64_t n_in) { return padded(n_in) / group_columns; }
    // Codes; per group: scale, sum times scale (floats), negated sum, and of both halves of 16 (int32), these times
    // scale.
    static int64_t row_bytes(int64_t n_in) { return padded(n_in) + (n_groups(n_in) * 28 + 63) / 64 * 64; }
    static int64_t size_bytes(int64_t n_rows, int64_t n_in) { return n_rows * row_bytes(n_in); }

    int8_t *codes(int64_t row) const { return reinterpret_cast<int8_t *>(data + row * row_bytes(n_in)); }
    float *scales(int64_t row) const { return reinterpret_cast<float *>(codes(row) + padded(n_in)); }
    float *scaled_sums(int64_t row) const { return scales(row) + n_groups(n_in); }
    int32_t *negated_sums(int64_t row) const { return reinterpret_cast<int32_t *>(scales(row) + 2 * n_groups(n_in)); }
    int32_t *negated_half_sums(int64_t row) const { return negated_sums(row) + n_groups(n_in); }
    float *scaled_half_sums(int64_t row) const { return scales(row) + 5 * n_groups(n_in); }
};

// One row [n_in] to the bytes of one of QuantizedRows.
void quantize_row(const KernelSet &kernels, const float *x, int64_t n_in, uint8_t *to);

// Rows of a matrix as a model file holds them, and the routines of their type.
struct FileRows {
    const uint8_t *data = nullptr;
    size_t row_bytes = 0, x_row_bytes = 0;
    void (*to_floats)(const void *row, float *out, int64_t n) = nullptr; // null: they are floats
    void (*round)(const float *x, void *to, int64_t n) = nullptr; // activations for `dot`; null: as they are
    void (*dot)(int n, float *sum, size_t, const void *row, size_t, const void *x, size_t, int n_rows) = nullptr;
};

// How a matrix wants its activations; `rounded`: as the routine for a row of the file's type does.
enum class RowForm { floats, bf16, codes, rounded };

// Rows of BF16 are filled up with zeros to whole registers, an odd number of them: so the same columns of several rows
// lie in different sets of a cache.
constexpr int64_t bf16_row_bytes(int64_t n_in) { return ((n_in + 31) / 32 | 1) * 64; }
// So many rows may be multiplied as BF16 by quantized weights: with fewer, making BF16 of them takes longer than all of a
// product of codes.
inline constexpr int many_rows = 25;

// A matrix [n_out, n_in] of a product: packed where packed.data is set, else in rows.
struct Matrix {
    PackedWeights packed{};
    FileRows rows{};
    int64_t n_out = 0, n_in = 0;
    // Of packed weights: activations as BF16, always or (of codes) where there are many_rows.
    bool takes_bf16 = false, takes_many_as_bf16 = false;

    // Of activations of so many rows.
    RowForm form(int n_rows) const {
        if (packed.data == nullptr) return rows.round == nullptr ? RowForm::floats : RowForm::rounded;
        if (takes_bf16) return RowForm::bf16;
        if (packed.is_float()) return RowForm::floats;
        return n_rows >= many_rows && takes_many_as_bf16 ? RowForm::bf16 : RowForm::codes;
    }
    bool rounds() const { return form(1) != RowForm::floats; } // any number of rows, or none
    int64_t x_row_bytes(RowForm form) const; // of a row of activations in that form
    int64_t x_row_bytes() const; // at most
    bool reads_as(const Matrix &other) const { // whether both want their activations alike
        return n_in == other.n_in && form(1) == other.form(1) &&
               (form(1) != RowForm::rounded || rows.round == other.rows.round);
    }
    int64_t size_bytes() const {
        return packed.data != nullptr ? packed.size_bytes() : n_out * int64_t(rows.row_bytes);
    }
};

// A packed matrix, to be multiplied by these kernels only.
Matrix packed_matrix(const KernelSet &kernels, const PackedWeights &weights);
// A row of activations [n_in] to a form that the matrix wants; nothing to do where that is floats.
void round_row(const KernelSet &kernels, const Matrix &matrix, RowForm form, const float *x, uint8_t *to);
// Row `row` of the matrix, [n_in].
void matrix_row(const Matrix &matrix, int64_t row, float *out);

// One matrix of a product and what it is multiplied with.
struct Factor {
    const Matrix *matrix;
    const uint8_t *x; // [n_rows] in the form that the matrix wants for form_rows
    const float *bias; // [n_out], or null
    float *out; // [n_rows, n_out]
};

// Columns of a result that are handed out together, and how many such strips there are; the last may have fewer.
inline constexpr int64_t strip_columns = float_tile_rows;
inline int64_t n_strips(int64_t n_out) { return (n_out + strip_columns - 1) / strip_columns; }

// Several products with as many rows, computed together.
struct Product {
    std::vector<Factor> factors;
    int n_rows = 0;
    int form_rows = 0; // of how many rows x was made at once
    const float *residual = nullptr; // [n_rows, n_out]: added to the only factor's result
    std::optional<Activation> activation; // of two factors alike in n_out: the first becomes activation(first) * second
    float *maxima = nullptr; // [n_rows, n_strips(n_out)]: the largest of every strip of the only factor's result
};

// A product cut into items for some number of workers.  Any cut gives the same bits.
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
    int64_t n_units_ = 0, n_together_ = 1; // units of an item
    std::vector<int64_t> run_ends_; // of few rows: the units that each item ends before
    int rows_, n_row_parts_, n_items_;
};

// About how many bytes a product reads, or would for as long as it computes.
int64_t product_cost_bytes(const Product &product);

// A product with one packed matrix, for tests: each worker calls this with the same arguments; items come from `next`,
// which is zero before the first call.
struct Matmul {
    PackedWeights weights;
    const float *raw; // [n_rows, n_in]: of floats, or to be rounded by each worker for itself; or null
    const uint8_t *x; // where `raw` is null: [n_rows] in the form that the matrix wants
    int n_rows;
    float *out; // [n_rows, n_out]
};
void packed_matmul(const KernelSet &kernels, const Matmul &matmul, std::atomic<int> &next, int n_workers);
// A worker's share of the rows [n_rows, n_in] to the form that the matrix wants.
void round_rows(const KernelSet &kernels, const Matrix &matrix, const float *x, int n_rows, int worker, int n_workers,
                uint8_t *to);

} // namespace quire
