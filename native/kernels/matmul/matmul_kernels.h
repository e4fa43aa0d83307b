// The tables of functions that an instruction set provides to matmul.cpp.  See attention_kernels.h for why nothing else
// may be visible.
#pragma once

#include <cstdint>

#include "kernels/matmul/matmul.h"

namespace quire {

// A part of a product: some tiles of the weights times some rows.
struct MatmulPart {
    const PackedWeights *weights;
    int64_t first_tile,
        n_tiles; // at most strip_tiles for codes; for BF16 by tiles at most bf16_part_tiles of 16 output rows
    const QuantizedRows *x; // for codes
    const float *raw; // for floats: [rows, n_in], starting at row 0
    const uint16_t *bf16; // for BF16: [rows, bf16_row_bytes(n_in) / 2], starting at row 0
    int first_row, n_rows;
    float *out; // [rows, out_stride], starting at row 0 and column 0
    int64_t out_stride; // in floats
    uint8_t *scratch; // scratch_bytes of matmul.cpp, 64-byte aligned
    int log_pages; // for floats: prefetches interleave `1 << log_pages` pages (prefetch.h)
};

inline constexpr int strip_tiles = 4;

// The rows and tiles that are multiplied at once, with their sums in registers.
struct BlockShape {
    int rows, tiles;
};
// Up to this many rows, each block reads the packed tiles; with more, tiles are unpacked once.
inline constexpr int few_packed_rows = 24;
inline constexpr int any_rows = 1 << 30;
// The size of a part of many rows multiplied as BF16 by AMX: rows, and tiles of 16 output rows.  Its scratch memory
// holds panels of weights and the sums.
inline constexpr int bf16_part_rows = 512, bf16_part_tiles = 16;
inline constexpr int64_t bf16_scratch_bytes = int64_t{bf16_part_tiles} * (32768 + bf16_part_rows * tile_rows * 4);

struct MatmulKernels {
    // Quantize rows [first, last) of x [.., n_in].
    void (*quantize)(const float *x, int64_t first, int64_t last, QuantizedRows &to);
    void (*multiply)(const MatmulPart &part);
    // multiply() for many rows as BF16; null if codes are as fast.
    void (*multiply_bf16)(const MatmulPart &part) = nullptr;
};

struct FloatMatmulKernels {
    void (*multiply)(const MatmulPart &part); // weights of 16 or 32 bits
    void (*multiply_bf16)(const MatmulPart &part); // BF16 by BF16; null if there is no instruction for it
    bool by_tiles = false; // multiply_bf16 takes parts of bf16_part_rows and bf16_part_tiles
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
// Multiply codes for up to most_few_rows rows, with the same bits as avx512vnni.
void multiply_few_rows(const MatmulPart &part);
inline constexpr int most_few_rows = 16;
extern const MatmulKernels matmul_kernels;
extern const MatmulKernels emulated_matmul_kernels;
extern const FloatMatmulKernels float_matmul_kernels;
extern const FloatMatmulKernels emulated_float_matmul_kernels;
} // namespace avx512amx

} // namespace quire
