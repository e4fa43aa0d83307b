// Blocks of quantized weights as model files hold them, taken apart: formats of ggml (ggml-common.h, ggml-quants.c).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/matmul/packed_weights.h"

namespace quire {

// Bytes of a block in a model file, and its columns.
int64_t file_block_bytes(WeightFormat format);
int64_t file_block_columns(WeightFormat format);

// One chunk of one row: the codes, and what scales them, as the layout stores them.
struct RowChunk {
    static constexpr int most_columns = 256, most_scales = 16; // of any layout
    std::array<uint8_t, most_columns> codes;
    std::array<uint16_t, most_scales> scales; // f16, or bytes
    std::array<uint16_t, most_scales> minima;
    uint16_t factor, minimum_factor; // f16
    std::array<int8_t, 16> table;    // where the layout has one in each chunk; of a tile, one for all
};

// A block of codebook_3 or codebook_4.  No file has such: it is what other types' blocks become before they are packed.
struct CodebookBlock {
    static constexpr int columns = 256;
    uint16_t factor; // f16
    int8_t values[16]; // in the order of their codes
    int8_t scales[16]; // as many as the layout has, in its unit
    uint8_t codes[columns];
};

inline uint16_t half_at(const uint8_t *at) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bits;
}

// The chunk of a row whose first block is at `blocks`; behind its n_blocks, columns of zero codes and scales.
void read_chunk(WeightFormat format, const uint8_t *blocks, int n_blocks, RowChunk &to);

} // namespace quire
