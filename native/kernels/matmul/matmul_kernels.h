// What an instruction set offers to matmul.cpp.  See attention_kernels.h for why nothing else may be visible.
#pragma once

#include <cstdint>

#include "kernels/matmul/matmul.h"

namespace quire {

// Some tiles of the weights times some rows.
struct MatmulPart {
    const PackedWeights *weights;
    int64_t first_tile,
        n_tiles; // at most strip_tiles of codes; of BF16 by tiles bf16_part_tiles, of 16 output rows each
    const QuantizedRows *x; // of codes
    const float *raw;       // of floats: [rows, n_in] of row 0
    const uint16_t *bf16;   // of BF16: [rows, bf16_row_bytes(n_in) / 2] of row 0
    int first_row, n_rows;
    float *out;         // [rows, out_stride] of row 0, column 0
    int64_t out_stride; // in floats
    uint8_t *scratch;   // scratch_bytes of matmul.cpp, 64-byte aligned
    int log_pages;      // of floats: prefetches take turns among `1 << log_pages` pages (prefetch.h)
};

inline constexpr int strip_tiles = 4;

// Rows and tiles that are multiplied at once, with their sums in registers.
struct BlockShape {
    int rows, tiles;
};
// Up to so many rows read tiles as they lie in memory, again for each block; more are worth unpacking for.
inline constexpr int few_packed_rows = 24;
inline constexpr int any_rows = 1 << 30;
// A part of many rows of BF16 by tiles: so many rows, tiles of 16 output rows; and its scratch, panels of weights and sums.
inline constexpr int bf16_part_rows = 512, bf16_part_tiles = 16;
inline constexpr int64_t bf16_scratch_bytes = int64_t{bf16_part_tiles} * (32768 + bf16_part_rows * tile_rows * 4);

struct MatmulKernels {
    // Rows [first, last) of x [.., n_in].
    void (*quantize)(const float *x, int64_t first, int64_t last, QuantizedRows &to);
    void (*multiply)(const MatmulPart &part);
    // The same with rows of BF16, for many of them; null where codes are as fast.
    void (*multiply_bf16)(const MatmulPart &part) = nullptr;
};

struct FloatMatmulKernels {
    void (*multiply)(const MatmulPart &part); // of weights of 16 or 32 bits
    void (*multiply_bf16)(const MatmulPart &part); // of BF16 with BF16; null where that is not an instruction
    bool by_tiles = false; // multiply_bf16: in parts of bf16_part_rows and bf16_part_tiles
};

namespace portable {
extern const MatmulKernels matmul_kernels;
extern const FloatMatmulKernels float_matmul_kernels;
} // namespace portable
namespace neon {
extern const MatmulKernels matmul_kernels;
extern const FloatMatmulKernels float_matmul_kernels;
} // namespace neon
namespace neoni8mm {
extern const MatmulKernels matmul_kernels;
}
namespace avx2 {
extern const MatmulKernels matmul_kernels;
extern const FloatMatmulKernels float_matmul_kernels;
} // namespace avx2
namespace avx2vnni {
extern const MatmulKernels matmul_kernels;
}
namespace avx512 {
extern const MatmulKernels matmul_kernels;
extern const FloatMatmulKernels float_matmul_kernels;
} // namespace avx512
namespace avx512vnni {
extern const MatmulKernels matmul_kernels;
}
namespace avx512bf16 {
extern const FloatMatmulKernels float_matmul_kernels;
}
namespace avx512amx {
// Of codes, up to most_few_rows; the bits are those of avx512vnni's.
void multiply_few_rows(const MatmulPart &part);
inline constexpr int most_few_rows = 16;
extern const MatmulKernels matmul_kernels;
extern const MatmulKernels emulated_matmul_kernels;
extern const FloatMatmulKernels float_matmul_kernels;
extern const FloatMatmulKernels emulated_float_matmul_kernels;
} // namespace avx512amx

} // namespace quire
