// Decoding of quantized blocks in the form they have in model files: ggml's formats (ggml-common.h, ggml-quants.c).
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/matmul/packed_weights.h"

namespace quire {

// The bytes of a block in a model file, and its columns.
int64_t file_block_bytes(WeightFormat format);
int64_t file_block_columns(WeightFormat format);

// One chunk of one row: the codes, scales and minima in the layout's form.
struct RowChunk {
    static constexpr int most_columns = 256, most_scales = 16; // the largest of all layouts
    std::array<uint8_t, most_columns> codes;
    std::array<uint16_t, most_scales> scales; // f16, or bytes
    std::array<uint16_t, most_scales> minima;
    uint16_t factor, minimum_factor; // f16
    std::array<int8_t, 16> table;    // if the layout has one per chunk; all rows of a tile share it
};

// A block of codebook_3 or codebook_4.  No file has these: blocks of other types are converted to them before packing.
struct CodebookBlock {
    static constexpr int columns = 256;
    uint16_t factor; // f16
    int8_t values[16]; // in the order of their codes
    int8_t scales[16]; // as many as the layout has, in the layout's unit
    uint8_t codes[columns];
};

inline uint16_t half_at(const uint8_t *at) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof bits);
    return bits;
}

// Read the chunk of a row whose first block is at `blocks`; columns after its n_blocks get zero codes and scales.
void read_chunk(WeightFormat format, const uint8_t *blocks, int n_blocks, RowChunk &to);

} // namespace quire
