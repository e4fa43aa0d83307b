// The packed layout of weights, which products of one row and of many rows share.
//
// A tile holds 16 output rows of a matrix [n_out, n_in]; the last tile is padded with zeros.  A tile is a sequence of
// chunks of 64 or 256 columns, each a multiple of 64 bytes.  Everything is in the order in which a product reads it,
// because hardware prefetchers follow sequential reads and deliver data three times as fast as software prefetches of
// single lines (Zen 4).
//
// If scales have two levels, a chunk starts with its factors.  Then come sections of 64 columns, or more if the scales
// of 64 would not fill 64 bytes.  A section has scales, minima and codes.  Codes are in groups of 32 columns and,
// within a group, in steps of 4 columns: [step][output row][column of the step], so one register of 64 bytes holds a
// step of all 16 rows.  Smaller codes share registers: if n bits of each are stored, the bits of 8 / n steps are next
// to each other.  Codes of 4 to 6 bits store their low 4 bits, codes of 2 and 3 bits their low 2.  The remaining high
// bits come first: one register of them precedes the low bits of the same steps.
//
// A value is scale * (code - zero_point), scale * code - minimum, or scale * table[code].  If tables differ between
// matrices, each chunk has its own after the factors.
//
// Weights of 16 or 32 bits have tiles of 64 output rows: [column][output row].  BF16 is multiplied two columns at a
// time and has [column / 2][output row][2], where an odd number of columns is padded with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

enum class WeightFormat {
    f32,
    f16,
    bf16,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q8_0,
    q2_k,
    q3_k,
    q4_k,
    q5_k,
    q6_k,
    iq4_nl,
    iq4_xs,
    mxfp4,
    nvfp4,
    q2_0,
    codebook_3, // any 8 values from -64 to 63
    codebook_4, // any 16 values of one byte; the layout of iq4_xs, which is a special case
};
inline constexpr WeightFormat last_format = WeightFormat::codebook_4;

inline constexpr int tile_rows = 16;
inline constexpr int float_tile_rows = 64;
inline constexpr int group_columns = 32;
inline constexpr int step_columns = 4;
inline constexpr int group_steps = group_columns / step_columns;
inline constexpr int register_bytes = 64;

// The storage of scales and minima.  In "two levels", they are small integers times an f16 factor per chunk and row.
enum class ScaleForm {
    halves, // f16
    bytes, // uint8, two levels
    signed_bytes, // int8, two levels
    nibbles, // a scale in the low 4 bits and a minimum in the high ones, two levels
    powers, // a byte e, for 2^(e - 128)
    minifloats, // half the value of a number with 4 bits of exponent and 3 of fraction
};

// The values of 4-bit codes: of IQ4_NL and IQ4_XS, and of MXFP4 and NVFP4 (in units of 1/2).
inline constexpr int8_t uneven_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t float4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The values of codes.  It is not a pointer, because with sanitizers GCC does not treat comparing one as a constant.
enum class CodeValues { lines, uneven, float4, in_chunk };

// The places of a chunk's parts, in bytes from its start.  Everything is inlined so that kernels have constants, and so
// that no instruction set uses the code compiled for another one.
struct ChunkLayout {
    int columns; // 64, or 256 if the file's blocks are that long
    int code_bits; // 2, 3, 4, 5, 6 or 8
    int scale_columns; // columns that share a scale: 32 or 16
    int zero_point; // 0 if there are minima
    ScaleForm scales;
    bool has_minima = false; // one per scale
    CodeValues values = CodeValues::lines; // otherwise a table of 16, to which zero_point is added
    float unit = 1.0F; // for signed_bytes: a power of two

    [[gnu::always_inline]] constexpr bool has_two_levels() const {
        return scales == ScaleForm::bytes || scales == ScaleForm::signed_bytes || scales == ScaleForm::nibbles;
    }
    [[gnu::always_inline]] constexpr bool has_table() const { return values != CodeValues::lines; }
    [[gnu::always_inline]] const int8_t *table(const uint8_t *chunk) const {
        if (values == CodeValues::in_chunk) return reinterpret_cast<const int8_t *>(chunk + table_at());
        return values == CodeValues::uneven ? uneven_values : float4_values;
    }
    [[gnu::always_inline]] constexpr int max_code() const { // after looking up and adding zero_point
        return !has_table() ? (1 << code_bits) - 1 : zero_point == 128 ? 255 : 2 * zero_point - 1;
    }
    [[gnu::always_inline]] constexpr int low_bits() const { return code_bits == 8 ? 8 : code_bits <= 3 ? 2 : 4; }
    [[gnu::always_inline]] constexpr int high_bits() const { return code_bits - low_bits(); }
    [[gnu::always_inline]] constexpr int n_scales() const { return columns / scale_columns; }

    // The number of steps that share a register.
    [[gnu::always_inline]] constexpr int low_steps() const { return 8 / low_bits(); }
    [[gnu::always_inline]] constexpr int high_steps() const { return high_bits() == 0 ? group_steps : 8 / high_bits(); }
    // A set is a register of high bits, if there are any, and the registers of low bits of the same steps.
    [[gnu::always_inline]] constexpr int set_bytes() const {
        return ((high_bits() == 0 ? 0 : 1) + high_steps() / low_steps()) * register_bytes;
    }
    [[gnu::always_inline]] constexpr int group_bytes() const { return group_steps / high_steps() * set_bytes(); }

    // Bytes of a section's scales, for all output rows.
    [[gnu::always_inline]] constexpr int scale_bytes() const {
        return tile_rows * (scales == ScaleForm::halves ? 2 : 1);
    }
    [[gnu::always_inline]] constexpr bool has_bytes_of_minima() const {
        return has_minima && scales != ScaleForm::nibbles;
    }
    [[gnu::always_inline]] constexpr int scaling_bytes() const { // scales and minima
        return scale_bytes() * (has_bytes_of_minima() ? 2 : 1);
    }
    [[gnu::always_inline]] constexpr int section_columns() const {
        const int filling = register_bytes / scaling_bytes() * scale_columns;
        return filling < 64 ? 64 : filling > columns ? columns : filling;
    }
    [[gnu::always_inline]] constexpr int section_scales() const { return section_columns() / scale_columns; }
    [[gnu::always_inline]] constexpr int section_head_bytes() const {
        return (section_scales() * scaling_bytes() + register_bytes - 1) / register_bytes * register_bytes;
    }
    [[gnu::always_inline]] constexpr int section_groups() const { return section_columns() / group_columns; }
    [[gnu::always_inline]] constexpr int section_bytes() const {
        return section_head_bytes() + section_groups() * group_bytes();
    }
    // f16 [16] for scales, then [16] for minima or a table
    [[gnu::always_inline]] constexpr int factors_at() const { return 0; }
    [[gnu::always_inline]] constexpr int table_at() const { return factors_at() + tile_rows * 2; }
    [[gnu::always_inline]] constexpr int section_at(int i) const {
        return (has_two_levels() ? register_bytes : 0) + i * section_bytes();
    }
    [[gnu::always_inline]] constexpr int bytes() const { return section_at(columns / section_columns()); }

    [[gnu::always_inline]] constexpr int scale_at(int i) const {
        return section_at(i / section_scales()) + i % section_scales() * scale_bytes();
    }
    [[gnu::always_inline]] constexpr int minimum_at(int i) const {
        return scale_at(i) + (has_bytes_of_minima() ? section_scales() * scale_bytes() : 0);
    }
    [[gnu::always_inline]] constexpr int high_at(int group, int step) const { // the start of the step's set
        return section_at(group / section_groups()) + section_head_bytes() + group % section_groups() * group_bytes() +
               step / high_steps() * set_bytes();
    }
    [[gnu::always_inline]] constexpr int low_at(int group, int step) const {
        return high_at(group, step) + (high_bits() == 0 ? 0 : register_bytes) +
               step % high_steps() / low_steps() * register_bytes;
    }
    [[gnu::always_inline]] constexpr int high_shift(int step) const { return step % high_steps() * high_bits(); }
    [[gnu::always_inline]] constexpr int low_shift(int step) const { return step % low_steps() * low_bits(); }
};

constexpr ChunkLayout chunk_layout(WeightFormat format) {
    switch (format) {
    case WeightFormat::q4_0: return {64, 4, 32, 8, ScaleForm::halves};
    case WeightFormat::q4_1: return {64, 4, 32, 0, ScaleForm::halves, true};
    case WeightFormat::q5_0: return {64, 5, 32, 16, ScaleForm::halves};
    case WeightFormat::q5_1: return {64, 5, 32, 0, ScaleForm::halves, true};
    case WeightFormat::q8_0: return {64, 8, 32, 128, ScaleForm::halves};
    case WeightFormat::q2_k: return {256, 2, 16, 0, ScaleForm::nibbles, true};
    case WeightFormat::q3_k: return {256, 3, 16, 4, ScaleForm::signed_bytes};
    case WeightFormat::q4_k: return {256, 4, 32, 0, ScaleForm::bytes, true};
    case WeightFormat::q5_k: return {256, 5, 32, 0, ScaleForm::bytes, true};
    case WeightFormat::q6_k: return {256, 6, 16, 32, ScaleForm::signed_bytes};
    case WeightFormat::iq4_nl: return {64, 4, 32, 128, ScaleForm::halves, false, CodeValues::uneven};
    case WeightFormat::iq4_xs:
    case WeightFormat::codebook_4: return {256, 4, 32, 128, ScaleForm::signed_bytes, false, CodeValues::in_chunk, 0.5F};
    case WeightFormat::codebook_3:
        return {256, 3, 16, 64, ScaleForm::signed_bytes, false, CodeValues::in_chunk, 0.125F};
    case WeightFormat::q2_0: return {64, 2, 32, 1, ScaleForm::halves};
    case WeightFormat::mxfp4: return {64, 4, 32, 16, ScaleForm::powers, false, CodeValues::float4};
    case WeightFormat::nvfp4: return {64, 4, 16, 16, ScaleForm::minifloats, false, CodeValues::float4};
    default: return {};
    }
}

// Call `act` with the format of quantized weights, or another one of the same layout, as its template argument.
// float_matmul_tile.h handles floats.
template <class Act> void with_format(WeightFormat format, const Act &act) {
    switch (format) {
    case WeightFormat::q4_0: return act.template operator()<WeightFormat::q4_0>();
    case WeightFormat::q4_1: return act.template operator()<WeightFormat::q4_1>();
    case WeightFormat::q5_0: return act.template operator()<WeightFormat::q5_0>();
    case WeightFormat::q5_1: return act.template operator()<WeightFormat::q5_1>();
    case WeightFormat::q8_0: return act.template operator()<WeightFormat::q8_0>();
    case WeightFormat::q2_k: return act.template operator()<WeightFormat::q2_k>();
    case WeightFormat::q3_k: return act.template operator()<WeightFormat::q3_k>();
    case WeightFormat::q4_k: return act.template operator()<WeightFormat::q4_k>();
    case WeightFormat::q5_k: return act.template operator()<WeightFormat::q5_k>();
    case WeightFormat::q6_k: return act.template operator()<WeightFormat::q6_k>();
    case WeightFormat::iq4_nl: return act.template operator()<WeightFormat::iq4_nl>();
    case WeightFormat::iq4_xs:
    case WeightFormat::codebook_4: return act.template operator()<WeightFormat::codebook_4>();
    case WeightFormat::codebook_3: return act.template operator()<WeightFormat::codebook_3>();
    case WeightFormat::q2_0: return act.template operator()<WeightFormat::q2_0>();
    case WeightFormat::mxfp4: return act.template operator()<WeightFormat::mxfp4>();
    case WeightFormat::nvfp4: return act.template operator()<WeightFormat::nvfp4>();
    default: return;
    }
}

// A matrix in tiles; `data` is 64-byte aligned.
struct PackedWeights {
    WeightFormat format;
    int64_t n_out, n_in;
    const uint8_t *data;
    bool is_rounded = false; // BF16, converted from the F16 of the file

    bool is_float() const { return format <= WeightFormat::bf16; }
    int64_t rows_of_tile() const { return is_float() ? float_tile_rows : tile_rows; }
    int64_t n_tiles() const { return (n_out + rows_of_tile() - 1) / rows_of_tile(); }
    // Columns are filled up to whole chunks with zeros.
    int64_t n_chunks() const { // not for floats
        const int columns = chunk_layout(format).columns;
        return (n_in + columns - 1) / columns;
    }
    int64_t tile_bytes() const {
        if (format == WeightFormat::bf16) return (n_in + 1) / 2 * 2 * float_tile_rows * 2;
        if (is_float()) return n_in * float_tile_rows * (format == WeightFormat::f32 ? 4 : 2);
        return n_chunks() * chunk_layout(format).bytes();
    }
    int64_t size_bytes() const { return n_tiles() * tile_bytes(); }
};

// The index of a number in a tile of floats.
constexpr int64_t float_at(WeightFormat format, int64_t column, int64_t row) {
    if (format == WeightFormat::bf16) return (column / 2 * float_tile_rows + row) * 2 + column % 2;
    return column * float_tile_rows + row;
}

// Pack one tile of a matrix, given as rows of whole blocks like in a model file, to tile `tile` of `to`.
void pack_tile(const PackedWeights &packed, const uint8_t *rows, int64_t tile, uint8_t *to);

// Write the values of one row, [n_in].
void unpack_row(const PackedWeights &packed, int64_t row, float *to);

} // namespace quire
