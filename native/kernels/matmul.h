// Matrix products with packed weights on the CPU: y = x W^T.
//
// With weights of 16 or 32 bits everything is single precision.  With quantized ones activations are rounded to 8 bits, 32 columns to a scale (largest magnitude / 127), as ggml's products do; products
// of codes are summed exactly, in integers, scaled and added in single precision, group by group in the order of the
// columns.  So the bits of a row depend on that row alone: not on the other rows, the part it is computed in, nor the
// number of workers.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/packed_weights.h"

namespace quire {

// Rows of activations as the products read them.  Rows are filled up to a multiple of 64 columns with zeros.
struct QuantizedRows {
    int64_t n_in;
    uint8_t *data; // size_bytes(n_rows, n_in) of them, 64-byte aligned

    static int64_t padded(int64_t n_in) { return (n_in + 63) / 64 * 64; }
    static int64_t n_groups(int64_t n_in) { return padded(n_in) / group_columns; }
    // Codes; per group: scale, sum times scale (floats), negated sum, and of both halves of 16 (int32).
    static int64_t row_bytes(int64_t n_in) { return padded(n_in) + (n_groups(n_in) * 20 + 63) / 64 * 64; }
    static int64_t size_bytes(int64_t n_rows, int64_t n_in) { return n_rows * row_bytes(n_in); }

    int8_t *codes(int64_t row) const { return reinterpret_cast<int8_t *>(data + row * row_bytes(n_in)); }
    float *scales(int64_t row) const { return reinterpret_cast<float *>(codes(row) + padded(n_in)); }
    float *scaled_sums(int64_t row) const { return scales(row) + n_groups(n_in); }
    int32_t *negated_sums(int64_t row) const { return reinterpret_cast<int32_t *>(scales(row) + 2 * n_groups(n_in)); }
    int32_t *negated_half_sums(int64_t row) const { return negated_sums(row) + n_groups(n_in); }
};

// Whether this machine has the instructions for it (AVX-512 with VNNI, and not a lower set forced).
bool has_packed_matmul();

// A worker's share of the rows [n_rows, n_in].
void quantize_rows(const float *x, int n_rows, int worker, int n_workers, QuantizedRows &to);

struct Matmul {
    PackedWeights weights;
    const float *raw; // [n_rows, n_in]: of floats, or few rows, which each worker rounds for itself; or null
    QuantizedRows x; // where `raw` is null
    int n_rows;
    float *out; // [n_rows, n_out]
};

// Up to so many rows are rounded by each worker for itself: a barrier takes longer.
inline constexpr int max_raw_rows = 4;

// Each worker calls this with the same arguments; parts come from `next`, which is zero before the first call.
void packed_matmul(const Matmul &matmul, std::atomic<int> &next, int n_workers);

} // namespace quire
