#include "kernels/matmul/file_blocks.h"

#include <algorithm>

namespace quire {
namespace {

// Blocks of 32 columns: an f16 scale; an f16 minimum if the type has minima; with 5 bits, the fifth bits in 4 bytes;
// then codes, two per byte, the first half of the block in the low bits.
void read_small_blocks(const ChunkLayout &layout, const uint8_t *block, int64_t block_bytes, int n, RowChunk &to) {
    for (int i = 0; i < n; ++i, block += block_bytes) {
        const uint8_t *at = block;
        uint8_t *codes = to.codes.data() + i * group_columns;
        to.scales[static_cast<size_t>(i)] = half_at(at);
        at += 2;
        if (layout.has_minima) {
            to.minima[static_cast<size_t>(i)] = half_at(at);
            at += 2;
        }
        if (layout.code_bits == 8) {
            for (int k = 0; k < group_columns; ++k) codes[k] = static_cast<uint8_t>(at[k] + 128);
            continue;
        }
        uint32_t high = 0;
        if (layout.code_bits == 5) {
            std::memcpy(&high, at, sizeof high);
            at += 4;
        }
        for (int k = 0; k < 16; ++k) {
            codes[k] = static_cast<uint8_t>((at[k] & 15) | (((high >> k) & 1) << 4));
            codes[k + 16] = static_cast<uint8_t>((at[k] >> 4) | (((high >> (k + 16)) & 1) << 4));
        }
    }
}

// Q4_K and Q5_K: f16 factors of scales and minima; 8 scales and 8 minima of 6 bits in 12 bytes; with 5 bits, the fifth
// bits in 32 bytes (bit i of byte k: group i, column k); then codes (byte k of 32: column k of two groups).
void read_k_block(const ChunkLayout &layout, const uint8_t *block, RowChunk &to) {
    to.factor = half_at(block);
    to.minimum_factor = half_at(block + 2);
    const uint8_t *packed = block + 4;
    for (size_t g = 0; g < 8; ++g) {
        const size_t low = g % 4;
        if (g < 4) {
            to.scales[g] = packed[low] & 63;
            to.minima[g] = packed[low + 4] & 63;
        } else {
            to.scales[g] = static_cast<uint16_t>((packed[low + 8] & 15) | ((packed[low] >> 6) << 4));
            to.minima[g] = static_cast<uint16_t>((packed[low + 8] >> 4) | ((packed[low + 4] >> 6) << 4));
        }
    }
    const uint8_t *high = block + 16;
    const uint8_t *codes = layout.code_bits == 5 ? high + 32 : high;
    for (int g = 0; g < 8; ++g) {
        for (int k = 0; k < 32; ++k) {
            const int low = (codes[g / 2 * 32 + k] >> (g % 2 * 4)) & 15;
            const int fifth = layout.code_bits == 5 ? (high[k] >> g) & 1 : 0;
            to.codes[static_cast<size_t>(g * 32 + k)] = static_cast<uint8_t>(low | (fifth << 4));
        }
    }
}

// Q6_K, in halves of 128 columns: 64 bytes with the low 4 bits (columns k and k + 64 in byte k), 32 with the high 2
// (columns k, k + 32, k + 64, k + 96 in byte k); 16 scales of int8; an f16 factor.
void read_q6_k(const uint8_t *block, RowChunk &to) {
    for (int half = 0; half < 2; ++half) {
        const uint8_t *low = block + half * 64, *high = block + 128 + half * 32;
        for (int k = 0; k < 128; ++k) {
            const int low_bits = (low[k % 64] >> (k / 64 * 4)) & 15;
            const int high_bits = (high[k % 32] >> (k / 32 * 2)) & 3;
            to.codes[static_cast<size_t>(half * 128 + k)] = static_cast<uint8_t>(low_bits | (high_bits << 4));
        }
    }
    for (size_t i = 0; i < 16; ++i) to.scales[i] = block[192 + i];
    to.factor = half_at(block + 208);
}

// Q3_K: high bits in 32 bytes (bit i of byte k: column 32 i + k), then in halves of 128 columns 32 bytes with the low 2
// bits (columns k, k + 32, k + 64, k + 96 in byte k), 16 scales of 6 bits (32 is zero) in 12 bytes, an f16 factor.
void read_q3_k(const uint8_t *block, RowChunk &to) {
    const uint8_t *low = block + 32, *packed = block + 96;
    for (int k = 0; k < 256; ++k) {
        const int low_bits = (low[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2)) & 3;
        const int high_bit = (block[k % 32] >> (k / 32)) & 1;
        to.codes[static_cast<size_t>(k)] = static_cast<uint8_t>(low_bits | (high_bit << 2));
    }
    for (size_t i = 0; i < 16; ++i) {
        const int low_bits = (packed[i % 8] >> (i / 8 * 4)) & 15;
        const int high_bits = (packed[8 + i % 4] >> (i / 4 * 2)) & 3;
        to.scales[i] = static_cast<uint8_t>((low_bits | (high_bits << 4)) - 32);
    }
    to.factor = half_at(block + 108);
}

// IQ4_XS: an f16 factor; scales of 6 bits (32 is zero), the high 2 of group i in bits 2i of 16, the low 4 in 4 bytes;
// codes as in blocks of 32.  Scales are packed in halves.
void read_iq4_xs(const uint8_t *block, RowChunk &to) {
    std::copy_n(uneven_values, to.table.size(), to.table.begin());
    to.factor = half_at(block);
    const uint16_t high = half_at(block + 2);
    for (size_t g = 0; g < 8; ++g) {
        const int low_bits = (block[4 + g / 2] >> (g % 2 * 4)) & 15, high_bits = (high >> (2 * g)) & 3;
        to.scales[g] = static_cast<uint8_t>(2 * ((low_bits | (high_bits << 4)) - 32));
        for (size_t k = 0; k < 16; ++k) {
            const uint8_t pair = block[8 + g * 16 + k];
            to.codes[g * 32 + k] = pair & 15;
            to.codes[g * 32 + k + 16] = pair >> 4;
        }
    }
}

// Q2_K: 16 scales and minima of 4 bits each, in one byte; in halves of 128 columns 32 bytes with the codes (columns k,
// k + 32, k + 64, k + 96 in byte k); f16 factors of scales and minima.
void read_q2_k(const uint8_t *block, RowChunk &to) {
    for (int k = 0; k < 256; ++k) {
        const int bits = block[16 + k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2);
        to.codes[static_cast<size_t>(k)] = static_cast<uint8_t>(bits & 3);
    }
    for (size_t i = 0; i < 16; ++i) to.scales[i] = block[i];
    to.factor = half_at(block + 80);
    to.minimum_factor = half_at(block + 82);
}

// Read `n` codes, two per byte, the first half of them in the low bits.
void read_pairs(const uint8_t *from, int n, uint8_t *codes) {
    for (int k = 0; k < n / 2; ++k) {
        codes[k] = from[k] & 15;
        codes[k + n / 2] = from[k] >> 4;
    }
}

// MXFP4: an exponent of one byte and 32 codes.
void read_mxfp4(const uint8_t *block, int n_blocks, RowChunk &to) {
    for (int i = 0; i < n_blocks; ++i, block += 17) {
        to.scales[static_cast<size_t>(i)] = block[0];
        read_pairs(block + 1, 32, to.codes.data() + i * 32);
    }
}

// NVFP4: 4 scales (127 means zero), then 4 times 16 codes.
void read_nvfp4(const uint8_t *block, RowChunk &to) {
    for (size_t i = 0; i < 4; ++i) {
        to.scales[i] = block[i] == 127 ? 0 : block[i] & 127;
        read_pairs(block + 4 + i * 8, 16, to.codes.data() + i * 16);
    }
}

// Q2_0: an f16 scale and 64 codes of 2 bits.
void read_q2_0(const uint8_t *block, RowChunk &to) {
    to.scales[0] = to.scales[1] = half_at(block);
    for (int k = 0; k < 64; ++k)
        to.codes[static_cast<size_t>(k)] = static_cast<uint8_t>(block[2 + k / 4] >> (k % 4 * 2) & 3);
}

void read_codebook(const ChunkLayout &layout, const uint8_t *from, RowChunk &to) {
    CodebookBlock block;
    std::memcpy(&block, from, sizeof block);
    to.factor = block.factor;
    const int least = -layout.zero_point; // so that kernels can add the zero point and get unsigned codes
    for (size_t i = 0; i < to.table.size(); ++i)
        to.table[i] = static_cast<int8_t>(std::clamp<int>(block.values[i], least, -least - 1));
    for (size_t i = 0; i < to.scales.size(); ++i) to.scales[i] = static_cast<uint8_t>(block.scales[i]);
    std::copy_n(block.codes, to.codes.size(), to.codes.begin());
}

} // namespace

void read_chunk(WeightFormat format, const uint8_t *blocks, int n_blocks, RowChunk &to) {
    const ChunkLayout layout = chunk_layout(format);
    // Columns after the last have zero codes and scales, and zero activations.
    to = {};
    switch (format) {
    case WeightFormat::q4_k:
    case WeightFormat::q5_k: return read_k_block(layout, blocks, to);
    case WeightFormat::q6_k: return read_q6_k(blocks, to);
    case WeightFormat::q3_k: return read_q3_k(blocks, to);
    case WeightFormat::q2_k: return read_q2_k(blocks, to);
    case WeightFormat::mxfp4: return read_mxfp4(blocks, n_blocks, to);
    case WeightFormat::nvfp4: return read_nvfp4(blocks, to);
    case WeightFormat::iq4_xs: return read_iq4_xs(blocks, to);
    case WeightFormat::q2_0: return read_q2_0(blocks, to);
    case WeightFormat::codebook_3:
    case WeightFormat::codebook_4: return read_codebook(layout, blocks, to);
    default: return read_small_blocks(layout, blocks, file_block_bytes(format), n_blocks, to);
    }
}

int64_t file_block_columns(WeightFormat format) {
    if (format <= WeightFormat::bf16) return 1;
    if (format == WeightFormat::nvfp4 || format == WeightFormat::q2_0) return 64;
    return chunk_layout(format).columns == 256 ? 256 : 32;
}

int64_t file_block_bytes(WeightFormat format) {
    switch (format) {
    case WeightFormat::q4_0: return 18;
    case WeightFormat::q4_1: return 20;
    case WeightFormat::q5_0: return 22;
    case WeightFormat::q5_1: return 24;
    case WeightFormat::q8_0: return 34;
    case WeightFormat::q4_k: return 144;
    case WeightFormat::q5_k: return 176;
    case WeightFormat::q6_k: return 210;
    case WeightFormat::q2_k: return 84;
    case WeightFormat::q3_k: return 110;
    case WeightFormat::iq4_nl: return 18;
    case WeightFormat::iq4_xs: return 136;
    case WeightFormat::mxfp4: return 17;
    case WeightFormat::nvfp4: return 36;
    case WeightFormat::q2_0: return 18;
    case WeightFormat::codebook_3:
    case WeightFormat::codebook_4: return sizeof(CodebookBlock);
    case WeightFormat::f32: return 4;
    case WeightFormat::f16:
    case WeightFormat::bf16: return 2;
    }
    return 0;
}

} // namespace quire
