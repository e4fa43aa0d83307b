#include "cuda/arranged_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace quire {
namespace {

// Numbers of a row in a unit, as the file has them: w = (d * scale) * (code - zero) - d_min * minimum + added.
struct UnitRow {
    uint8_t codes[256];
    float d[16]; // by half of a group; most types have one for both, and the K types one for all
    float d_min, added[8]; // added: by group
    int scales[16], minima[8]; // K types: scales of groups of 32, for q6_k of 16
};

float half_to_float(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float size = exponent == 0    ? std::ldexp(static_cast<float>(mantissa), -24)
                       : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                        : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

uint16_t float_to_half(float x) { // to the nearest, halves to the even one
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const float size = std::fabs(x);
    if (std::isnan(x)) return sign | 0x7E00;
    if (size >= 65520.0F) return sign | 0x7C00;
    int exponent = 0;
    std::frexp(size, &exponent);
    const int lowest = std::max(exponent - 11, -24); // the last bit
    const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, -lowest)));
    return static_cast<uint16_t>(sign | (steps < 1024 ? steps : steps - 1024 + ((lowest + 25) << 10)));
}

template <class T> T load(const uint8_t *from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}
template <class T> void store(uint8_t *to, T value) { std::memcpy(to, &value, sizeof(value)); }
void add_bits(uint8_t *to, uint32_t bits) { store(to, load<uint32_t>(to) | bits); }

int block_bytes(ArrangedType type) { // as in GGUF, of 256 columns; bf16: of 128
    constexpr int sizes[n_arranged_types] = {8 * 18, 8 * 34, 144, 176, 210, 8 * 17, 256, 8 * 20, 8 * 22, 4 * 36};
    return sizes[static_cast<int>(type)];
}

bool is_k_type(ArrangedType type) {
    return type == ArrangedType::q4_k || type == ArrangedType::q5_k || type == ArrangedType::q6_k;
}

bool has_fifth_bits(ArrangedType type) { return type == ArrangedType::q5_k || type == ArrangedType::q5_0; }
bool is_e2m1(ArrangedType type) { return type == ArrangedType::mxfp4 || type == ArrangedType::nvfp4; }

// q4_k and q5_k: two f16; 12 bytes of 6-bit scales and minima; q5_k: 32 bytes of high bits, bit g of byte i for weight i
// of group g; 128 bytes of low halves, 64 weights in each 32 bytes.
void read_q45(const uint8_t *block, bool has_fifth, bool with_codes, UnitRow &row) {
    std::fill_n(row.d, 16, half_to_float(load<uint16_t>(block)));
    row.d_min = half_to_float(load<uint16_t>(block + 2));
    const uint8_t *packed = block + 4, *fifth = block + 16, *low = block + (has_fifth ? 48 : 16);
    for (int g = 0; g < 8; ++g) {
        row.scales[g] = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | packed[g - 4] >> 6 << 4;
        row.minima[g] = g < 4 ? packed[g + 4] & 63 : packed[g + 4] >> 4 | packed[g] >> 6 << 4;
        for (int i = 0; with_codes && i < 32; ++i) {
            const int code = low[g / 2 * 32 + i] >> (g % 2 * 4) & 15;
            row.codes[32 * g + i] = static_cast<uint8_t>(code | (has_fifth ? (fifth[i] >> g & 1) << 4 : 0));
        }
    }
}

// q6_k: cuda/row_product.cuh describes it.
void read_q6(const uint8_t *block, bool with_codes, UnitRow &row) {
    std::fill_n(row.d, 16, half_to_float(load<uint16_t>(block + 208)));
    for (int i = 0; i < 16; ++i) row.scales[i] = static_cast<int8_t>(block[192 + i]);
    for (int i = 0; with_codes && i < 256; ++i) {
        const int side = i / 128, group = i % 128 / 32, at = i % 32;
        const int low = block[64 * side + group % 2 * 32 + at] >> (group / 2 * 4) & 15;
        row.codes[i] = static_cast<uint8_t>(low | (block[128 + 32 * side + at] >> (2 * group) & 3) << 4);
    }
}

// Types with blocks of 32: a scale, perhaps an f16 to add or 32 fifth bits, then weights i and i + 16 in byte i.
void read_nibbles(ArrangedType type, const uint8_t *block, bool with_codes, UnitRow &row) {
    const int n_bytes = block_bytes(type) / 8, head = n_bytes - 16;
    for (int g = 0; g < 8; ++g) {
        const uint8_t *own = block + g * n_bytes, *codes = own + head;
        const float d =
            type == ArrangedType::mxfp4 ? std::ldexp(1.0F, own[0] - 127) : half_to_float(load<uint16_t>(own));
        row.d[2 * g] = row.d[2 * g + 1] = d;
        if (type == ArrangedType::q4_1) row.added[g] = half_to_float(load<uint16_t>(own + 2));
        const uint32_t fifth = type == ArrangedType::q5_0 ? load<uint32_t>(own + 2) : 0;
        for (int i = 0; with_codes && i < 32; ++i)
            row.codes[32 * g + i] = static_cast<uint8_t>((codes[i % 16] >> (i / 16 * 4) & 15) | (fifth >> i & 1) << 4);
    }
}

// nvfp4: of 64 weights, four scales of e4m3 without a sign, then weights i and i + 8 of each 16 in byte i.
void read_nvfp4(const uint8_t *block, bool with_codes, UnitRow &row) {
    for (int i = 0; i < 16; ++i) {
        const uint8_t *own = block + i / 4 * 36, bits = own[i % 4], *codes = own + 4 + i % 4 * 8;
        const int exponent = bits >> 3 & 15, mantissa = bits & 7;
        row.d[i] = bits == 0x7F || bits == 0xFF ? 0.0F // not a number; zero as in ggml
                   : exponent == 0              ? std::ldexp(static_cast<float>(mantissa), -9)
                                                : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
        for (int j = 0; with_codes && j < 16; ++j) row.codes[16 * i + j] = codes[j % 8] >> (j / 8 * 4) & 15;
    }
}

UnitRow read_unit(ArrangedType type, const uint8_t *block, bool with_codes = true) {
    UnitRow row{};
    if (type == ArrangedType::q4_k || type == ArrangedType::q5_k)
        read_q45(block, type == ArrangedType::q5_k, with_codes, row);
    else if (type == ArrangedType::q6_k)
        read_q6(block, with_codes, row);
    else if (type == ArrangedType::nvfp4)
        read_nvfp4(block, with_codes, row);
    else if (type != ArrangedType::q8_0)
        read_nibbles(type, block, with_codes, row);
    else
        for (int g = 0; g < 8; ++g) {
            row.d[2 * g] = row.d[2 * g + 1] = half_to_float(load<uint16_t>(block + 34 * g));
            for (int i = 0; with_codes && i < 32; ++i)
                row.codes[32 * g + i] = static_cast<uint8_t>(block[34 * g + 2 + i] + 128);
        }
    return row;
}

// Where a row's scales are in a unit.
int scales_at(ArrangedType type) {
    constexpr int offsets[n_arranged_types] = {2048, 4096, 2048, 2560, 3072, 2048, 0, 2048, 2560, 2048};
    return offsets[static_cast<int>(type)];
}

// f16 numbers of e2m1 are made by shifting bits and are too small by 2^14; its scales make up for that.
float made_up(ArrangedType type) { return is_e2m1(type) ? 16384.0F : 1.0F; }

struct Place {
    int row, group, lane; // row within the strip; lane: of column 0 of 8
};

// Codes of 4 bits: a word per lane, row and group, with columns 0, 2, 4, 6 in the low and 1, 3, 5, 7 in the high half;
// rows r and r + 8 of groups g and g + 1 next to each other.  The fifth bits, in this order, are 16 places of a half
// word: group, row, column; the fifth and sixth are 8 places of a word for each group: row, column.
void write_codes(ArrangedType type, const uint8_t *codes, Place p, uint8_t *unit) {
    const int high_row = p.row / 8;
    if (type == ArrangedType::q8_0) {
        std::memcpy(unit + p.group * 512 + p.lane * 16 + high_row * 8, codes, 8);
        return;
    }
    uint32_t low = 0, fifth = 0, sixth = 0;
    for (int i = 0; i < 8; ++i) {
        const int half = i % 2 * 16, high = codes[i] >> 4;
        low |= (codes[i] & 15U) << (i / 2 * 4 + half);
        fifth |= static_cast<uint32_t>(high & 1) << ((p.group % 2 * 2 + high_row) * 4 + i / 2 + half);
        sixth |= static_cast<uint32_t>(high & 3) << (high_row * 8 + i / 2 * 2 + half);
    }
    store(unit + p.group / 2 * 512 + p.lane * 16 + p.group % 2 * 8 + high_row * 4, low);
    if (has_fifth_bits(type)) add_bits(unit + 2048 + p.group / 2 * 128 + p.lane * 4, fifth);
    if (type == ArrangedType::q6_k) add_bits(unit + 2048 + p.group / 2 * 256 + p.lane * 8 + p.group % 2 * 4, sixth);
}

void read_codes(ArrangedType type, const uint8_t *unit, Place p, uint8_t *codes) {
    const int high_row = p.row / 8;
    if (type == ArrangedType::q8_0) {
        std::memcpy(codes, unit + p.group * 512 + p.lane * 16 + high_row * 8, 8);
        return;
    }
    const auto low = load<uint32_t>(unit + p.group / 2 * 512 + p.lane * 16 + p.group % 2 * 8 + high_row * 4);
    const uint8_t *of_five = unit + 2048 + p.group / 2 * 128 + p.lane * 4,
                  *of_six = unit + 2048 + p.group / 2 * 256 + p.lane * 8 + p.group % 2 * 4;
    for (int i = 0; i < 8; ++i) {
        const int half = i % 2 * 16;
        uint32_t code = low >> (i / 2 * 4 + half) & 15;
        if (has_fifth_bits(type))
            code |= (load<uint32_t>(of_five) >> ((p.group % 2 * 2 + high_row) * 4 + i / 2 + half) & 1) << 4;
        if (type == ArrangedType::q6_k) code |= (load<uint32_t>(of_six) >> (high_row * 8 + i / 2 * 2 + half) & 3) << 4;
        codes[i] = static_cast<uint8_t>(code);
    }
}

// q4_0, q5_0, q8_0, mxfp4: an f16 per row and group.  q4_1: as many again, which are added.  nvfp4: an f16 by row, half of
// a group, and group.  q4_k, q5_k: a byte of scale and one of minimum per row and group, then
// two f16 per row.  q6_k: a byte, 128 more than the scale, by row, half of a group, and group; then an f16 per row.
void write_scales(ArrangedType type, const UnitRow &from, float inverse, int row, uint8_t *unit) {
    uint8_t *to = unit + scales_at(type);
    if (type == ArrangedType::nvfp4) {
        for (int i = 0; i < 16; ++i)
            store(to + (row * 2 + i % 2) * 16 + i / 2 * 2, float_to_half(from.d[i] * inverse * made_up(type)));
        return;
    }
    if (!is_k_type(type)) {
        for (int g = 0; g < 8; ++g) {
            store(to + row * 16 + g * 2, float_to_half(from.d[2 * g] * inverse * made_up(type)));
            if (type == ArrangedType::q4_1) store(to + 256 + row * 16 + g * 2, float_to_half(from.added[g] * inverse));
        }
        return;
    }
    if (type == ArrangedType::q6_k) {
        for (int i = 0; i < 16; ++i) to[(row * 2 + i % 2) * 8 + i / 2] = static_cast<uint8_t>(from.scales[i] + 128);
        store(to + 256 + row * 2, float_to_half(from.d[0] * inverse));
        return;
    }
    for (int g = 0; g < 8; ++g) {
        to[row * 16 + g * 2] = static_cast<uint8_t>(from.scales[g]);
        to[row * 16 + g * 2 + 1] = static_cast<uint8_t>(from.minima[g]);
    }
    store(to + 256 + row * 4, float_to_half(from.d[0] * inverse));
    store(to + 256 + row * 4 + 2, float_to_half(-from.d_min * inverse));
}

// The scale, and what is added, of column i of a row.
struct Line {
    float scale, added;
};
Line read_scale(ArrangedType type, const uint8_t *unit, int row, int i) {
    const uint8_t *from = unit + scales_at(type);
    const int g = i / 32;
    if (type == ArrangedType::nvfp4) {
        const uint8_t *own = from + (row * 2 + i % 32 / 16) * 16 + g * 2;
        return {half_to_float(load<uint16_t>(own)) / made_up(type), 0};
    }
    if (!is_k_type(type)) {
        const uint8_t *own = from + row * 16 + g * 2;
        return {half_to_float(load<uint16_t>(own)) / made_up(type),
                type == ArrangedType::q4_1 ? half_to_float(load<uint16_t>(own + 256)) : 0};
    }
    if (type == ArrangedType::q6_k) {
        const int scale = from[(row * 2 + i % 32 / 16) * 8 + g] - 128;
        return {half_to_float(load<uint16_t>(from + 256 + row * 2)) * static_cast<float>(scale), 0};
    }
    const uint8_t *both = from + 256 + row * 4;
    return {half_to_float(load<uint16_t>(both)) * from[row * 16 + g * 2],
            half_to_float(load<uint16_t>(both + 2)) * from[row * 16 + g * 2 + 1]};
}

float decoded(ArrangedType type, uint8_t code) {
    if (type == ArrangedType::q4_0) return static_cast<float>(code - 8);
    if (type == ArrangedType::q8_0) return static_cast<float>(code - 128);
    if (type == ArrangedType::q6_k) return static_cast<float>(code - 32);
    if (type == ArrangedType::q5_0) return static_cast<float>(code - 16);
    constexpr float sizes[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    if (is_e2m1(type)) return code < 8 ? sizes[code] : -sizes[code - 8];
    return code;
}

int64_t n_strips(int64_t n_out) { return (n_out + arranged_rows - 1) / arranged_rows; }

// The power of two that brings the largest scale of a row to between 1/8 and 1/4, where neither it nor its products
// with scales of groups leave the range of f16.  With q4_1, what is added is much larger than scales, which have no
// factors of their own: to between 512 and 1024, so that small scales keep their bits.
float factor_of(ArrangedType type, const uint8_t *row, int64_t n_units) {
    float largest = 0;
    for (int64_t u = 0; u < n_units; ++u) {
        const UnitRow unit = read_unit(type, row + u * block_bytes(type), false);
        for (float d : unit.d) largest = std::max(largest, std::fabs(d));
        for (float added : unit.added) largest = std::max(largest, std::fabs(added));
        largest = std::max(largest, std::fabs(unit.d_min));
    }
    if (largest == 0 || !std::isfinite(largest)) return 1;
    int exponent = 0;
    std::frexp(largest, &exponent);
    return std::ldexp(1.0F, std::clamp(exponent + (type == ArrangedType::q4_1 ? -10 : 2), -120, 120));
}

} // namespace

BatchPlan default_batch_plan(ArrangedType type, int64_t n_in, int64_t n_out) {
    constexpr int64_t wanted_blocks = 512;
    constexpr int strips_of[n_batch_variants] = {1, 2, 4, 8};
    const int64_t strips = n_strips(n_out), units = arranged_units(type, n_in);
    BatchPlan plan;
    plan.variant = strips >= 2048 ? 3 : strips >= 512 ? 2 : strips >= 256 ? 1 : 0;
    const int64_t blocks = (strips + strips_of[plan.variant] - 1) / strips_of[plan.variant];
    const int64_t most = std::max<int64_t>(1, std::min<int64_t>(most_batch_splits, units / 4));
    plan.n_splits = static_cast<int32_t>(std::clamp<int64_t>(wanted_blocks / blocks, 1, most));
    return plan;
}

bool can_arrange(ArrangedType type, int64_t n_in, int64_t n_out) {
    const int64_t columns = is_k_type(type) ? 256 : type == ArrangedType::nvfp4 ? 64 : arranged_columns;
    return n_in > 0 && n_out > 0 && n_in % columns == 0 && n_in <= 1 << 20 && n_out <= 1 << 24;
}

size_t arranged_bytes(ArrangedType type, int64_t n_in, int64_t n_out) {
    return static_cast<size_t>(n_strips(n_out) * (arranged_rows * 4 + arranged_units(type, n_in) * unit_bytes(type)));
}

size_t stored_bytes(ArrangedType type, int64_t n_in) {
    return static_cast<size_t>(n_in * block_bytes(type) / (arranged_groups(type) * arranged_columns));
}

void arrange_rows(ArrangedType type, const void *rows, int64_t n_in, int64_t n_out, int64_t first_row, int64_t n_rows,
                  void *to) {
    const int64_t n_units = arranged_units(type, n_in), n_columns = arranged_groups(type) * arranged_columns;
    const auto row_bytes = static_cast<int64_t>(stored_bytes(type, n_in));
    std::vector<uint8_t> filled(static_cast<size_t>(n_units * block_bytes(type))); // with zeros
    auto *factors = static_cast<uint8_t *>(to);
    uint8_t *units = factors + n_strips(n_out) * arranged_rows * 4;
    for (int64_t i = 0; i < n_rows; ++i) {
        const uint8_t *from = static_cast<const uint8_t *>(rows) + i * row_bytes;
        if (n_in % n_columns != 0) {
            std::copy_n(from, row_bytes, filled.begin());
            from = filled.data();
        }
        const int64_t strip = (first_row + i) / arranged_rows;
        const int row = static_cast<int>((first_row + i) % arranged_rows);
        const float factor = type == ArrangedType::bf16 ? 1.0F : factor_of(type, from, n_units);
        store(factors + (first_row + i) * 4, factor);
        for (int64_t u = 0; u < n_units; ++u) {
            const uint8_t *block = from + u * block_bytes(type);
            uint8_t *unit = units + (strip * n_units + u) * unit_bytes(type);
            if (type == ArrangedType::bf16) {
                for (int part = 0; part < 16; ++part)
                    std::memcpy(unit + part / 4 * 1024 + row / 8 * 512 + (row % 8 * 4 + part % 4) * 16,
                                block + part * 16, 16);
                continue;
            }
            const UnitRow given = read_unit(type, block);
            write_scales(type, given, 1 / factor, row, unit);
            for (int part = 0; part < 32; ++part)
                write_codes(type, given.codes + part * 8, {row, part / 4, row % 8 * 4 + part % 4}, unit);
        }
    }
}

void read_arranged_row(ArrangedType type, const void *arranged, int64_t n_in, int64_t n_out, int64_t row, float *out) {
    const int64_t n_columns = arranged_groups(type) * arranged_columns, n_units = arranged_units(type, n_in);
    const auto *factors = static_cast<const uint8_t *>(arranged);
    const uint8_t *units = factors + n_strips(n_out) * arranged_rows * 4;
    const auto factor = load<float>(factors + row * 4);
    const int in_strip = static_cast<int>(row % arranged_rows);
    for (int64_t u = 0; u < n_units; ++u) {
        const uint8_t *unit = units + (row / arranged_rows * n_units + u) * unit_bytes(type);
        for (int part = 0; part < std::min(n_columns, n_in - u * n_columns) / 8; ++part) {
            const Place place{in_strip, part / 4, in_strip % 8 * 4 + part % 4};
            float *to = out + u * n_columns + part * 8;
            if (type == ArrangedType::bf16) {
                const uint8_t *from = unit + place.group * 1024 + in_strip / 8 * 512 + place.lane * 16;
                for (int i = 0; i < 8; ++i) {
                    const uint32_t bits = static_cast<uint32_t>(load<uint16_t>(from + 2 * i)) << 16;
                    std::memcpy(to + i, &bits, sizeof(bits));
                }
                continue;
            }
            uint8_t codes[8];
            read_codes(type, unit, place, codes);
            const Line line = read_scale(type, unit, in_strip, part * 8);
            for (int i = 0; i < 8; ++i) to[i] = (decoded(type, codes[i]) * line.scale + line.added) * factor;
        }
    }
}

} // namespace quire
