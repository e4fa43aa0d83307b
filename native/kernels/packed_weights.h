// Weights of matrix products, rearranged for one layout that serves one row and many.
//
// A tile holds 16 output rows of a matrix [n_out, n_in]; the last one is filled up with zeros.  A tile is a sequence of
// chunks of 64 or 256 columns, each a multiple of 64 bytes: first the codes, then what scales them.  Codes stand in
// groups of 32 columns and, in a group, in steps of 4 columns: [step][output row][column of the step], so that one
// register of 64 bytes holds a step of all 16 rows.  Where a code has 4 to 6 bits, its low 4 bits share a byte with
// those of the next step (the even step below), and the 5th and 6th bit have registers of their own: 1 bit each: bit i
// of a byte belongs to step i; 2 bits each: bits 2i and 2i + 1 belong to step i, of four.  Codes of 3 bits have their
// low 2 and their high one in such registers.
//
// A value is scale * (code - zero_point), or scale * code - minimum.
//
// Weights of 16 or 32 bits have tiles of 64 output rows: [column][output row].
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

enum class WeightFormat { f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs };

inline constexpr int tile_rows = 16;
inline constexpr int float_tile_rows = 64;
inline constexpr int group_columns = 32;
inline constexpr int step_columns = 4;
inline constexpr int group_steps = group_columns / step_columns;
inline constexpr int register_bytes = 64;

// Where things lie in a chunk, in bytes from its begin.
struct ChunkLayout {
    int columns; // 64, or 256 where blocks of the file are that long
    int code_bits; // 3, 4, 5, 6 or 8
    int scale_columns; // columns that share a scale: 32 or 16
    int zero_point; // 0 where there are minima
    bool has_minima; // of one per scale
    bool has_two_levels; // scales and minima are small integers [.][16] times an f16 per chunk and row
    bool has_table = false; // codes are numbers of four_bit_values, to which zero_point is added
    constexpr int low_bits() const { return code_bits == 8 ? 8 : code_bits == 3 ? 2 : 4; }
    constexpr int scales() const { return columns / scale_columns; }
    constexpr int low_bytes() const { return columns * tile_rows * low_bits() / 8; }
    constexpr int high_bytes() const { return columns * tile_rows * (code_bits - low_bits()) / 8; }
    constexpr int scales_at() const { return low_bytes() + high_bytes(); }
    // One level: f16 [scales][16].  Two: int8 or uint8 [scales][16].
    constexpr int scales_bytes() const { return columns / scale_columns * tile_rows * (has_two_levels ? 1 : 2); }
    constexpr int minima_at() const { return scales_at() + scales_bytes(); }
    constexpr int factors_at() const { return minima_at() + (has_minima ? scales_bytes() : 0); } // f16 [16], [16]
    constexpr int bytes() const {
        const int end = factors_at() + (has_two_levels ? 2 * tile_rows * 2 : 0);
        return (end + register_bytes - 1) / register_bytes * register_bytes;
    }
};

constexpr ChunkLayout chunk_layout(WeightFormat format) {
    switch (format) {
    case WeightFormat::q4_0: return {64, 4, 32, 8, false, false};
    case WeightFormat::q4_1: return {64, 4, 32, 0, true, false};
    case WeightFormat::q5_0: return {64, 5, 32, 16, false, false};
    case WeightFormat::q5_1: return {64, 5, 32, 0, true, false};
    case WeightFormat::q8_0: return {64, 8, 32, 128, false, false};
    case WeightFormat::q4_k: return {256, 4, 32, 0, true, true};
    case WeightFormat::q5_k: return {256, 5, 32, 0, true, true};
    case WeightFormat::q6_k: return {256, 6, 16, 32, false, true};
    case WeightFormat::q3_k: return {256, 3, 16, 4, false, true};
    case WeightFormat::iq4_nl: return {64, 4, 32, 128, false, false, true};
    case WeightFormat::iq4_xs: return {256, 4, 32, 128, false, true, true};
    default: return {};
    }
}

// What the codes of IQ4_NL and IQ4_XS stand for.
inline constexpr int8_t four_bit_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

// A matrix in tiles.  `data` is aligned to 64 bytes.
struct PackedWeights {
    WeightFormat format;
    int64_t n_out, n_in;
    const uint8_t *data;

    bool is_float() const { return format <= WeightFormat::bf16; }
    int64_t rows_of_tile() const { return is_float() ? float_tile_rows : tile_rows; }
    int64_t n_tiles() const { return (n_out + rows_of_tile() - 1) / rows_of_tile(); }
    // Columns are filled up to whole chunks with zeros.
    int64_t n_chunks() const { // not of floats
        const int columns = chunk_layout(format).columns;
        return (n_in + columns - 1) / columns;
    }
    int64_t tile_bytes() const {
        if (is_float()) return n_in * float_tile_rows * (format == WeightFormat::f32 ? 4 : 2);
        return n_chunks() * chunk_layout(format).bytes();
    }
    int64_t size_bytes() const { return n_tiles() * tile_bytes(); }
};

// Bytes of a block in a model file, and its columns.
int64_t file_block_bytes(WeightFormat format);
int64_t file_block_columns(WeightFormat format);

// Rearrange one tile of a matrix as model files hold it, rows of whole blocks, to tile `tile` of `to`.
void pack_tile(const PackedWeights &packed, const uint8_t *rows, int64_t tile, uint8_t *to);

// The values of one row, [n_in].
void unpack_row(const PackedWeights &packed, int64_t row, float *to);

} // namespace quire
