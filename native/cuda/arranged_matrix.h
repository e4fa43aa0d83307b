// A matrix rearranged for tensor cores: each lane of a warp finds its weights next to each other, and its neighbours'
// beside them.  Knows neither ggml nor CUDA; the core, tests and benchmarks share it.
//
// First one float per row, a power of two by which its results are multiplied; then, by strips of 16 rows, the *units*
// of 256 columns (BF16: 128); the last one is filled up with zeros.  A unit has groups of 32 columns.  Lane l of a warp works on rows l / 4 and l / 4 + 8 and,
// in each group, on columns l % 4 * 8 to l % 4 * 8 + 7.  The comments in arranged_matrix.cpp define the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

enum class ArrangedType : int32_t { q4_0, q8_0, q4_k, q5_k, q6_k, mxfp4, bf16, q4_1, q5_0, nvfp4 };
constexpr int n_arranged_types = 10, arranged_rows = 16, arranged_columns = 32;

constexpr int arranged_groups(ArrangedType type) { return type == ArrangedType::bf16 ? 4 : 8; }
constexpr int unit_bytes(ArrangedType type) {
    constexpr int sizes[n_arranged_types] = {2304, 4352, 2368, 2880, 3360, 2304, 4096, 2560, 2816, 2560};
    return sizes[static_cast<int>(type)];
}
constexpr int64_t arranged_units(ArrangedType type, int64_t n_in) {
    const int64_t columns = arranged_groups(type) * arranged_columns;
    return (n_in + columns - 1) / columns;
}

// Which kernel computes a product, and into how many parts its columns are split.  Both decide the order of sums, so
// they depend on the matrix alone, never on the number of rows.
struct BatchPlan {
    int32_t variant = 0, n_splits = 1;
};
constexpr int n_batch_variants = 4, most_batch_splits = 16;
// A guess, for matrices that were not timed.
BatchPlan default_batch_plan(ArrangedType type, int64_t n_in, int64_t n_out);

// False if the kernels cannot multiply matrices of this size.
bool can_arrange(ArrangedType type, int64_t n_in, int64_t n_out);
size_t arranged_bytes(ArrangedType type, int64_t n_in, int64_t n_out);
size_t stored_bytes(ArrangedType type, int64_t n_in); // a row in GGUF
// Rearranges rows, stored as in GGUF, that are rows `first_row` and following of a matrix of n_out rows.  `to` is
// zeroed before the first call.  Each call may run on a thread of its own if its rows are whole strips.
void arrange_rows(ArrangedType type, const void *rows, int64_t n_in, int64_t n_out, int64_t first_row, int64_t n_rows,
                  void *to);
// Decodes a row of an arranged matrix.
void read_arranged_row(ArrangedType type, const void *arranged, int64_t n_in, int64_t n_out, int64_t row, float *out);

} // namespace quire
