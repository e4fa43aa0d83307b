#include "kernels/attention/low_bits.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace quire {
namespace {

struct Group {
    uint8_t codes[low_bits_group];
    float scale, smallest;
};

// Scales below this are too small to divide by and count as zero.
constexpr float least_scale = 1e-30F;

bool is_finite(const float *x) {
    float strange = 0.0F;
    for (int i = 0; i < low_bits_group; ++i) strange += x[i] * 0.0F;
    return strange == 0.0F;
}

// x = (code - 8) * scale; the number with the largest magnitude gets code 0.
Group four_bits(const float *x) {
    float largest = 0.0F;
    for (int i = 0; i < low_bits_group; ++i) {
        if (std::fabs(largest) < std::fabs(x[i])) largest = x[i];
    }
    const float scale = largest / -8.0F;
    const float inverse = std::fabs(scale) > least_scale ? 1.0F / scale : 0.0F;
    Group group{{}, scale, 0.0F};
    for (int i = 0; i < low_bits_group; ++i) {
        const int code = static_cast<int>(x[i] * inverse + 8.5F);
        group.codes[i] = static_cast<uint8_t>(code < 15 ? code : 15);
    }
    return group;
}

// x = code * scale + smallest.
Group five_bits(const float *x) {
    float smallest = x[0], largest = x[0];
    for (int i = 1; i < low_bits_group; ++i) {
        smallest = smallest < x[i] ? smallest : x[i];
        largest = largest > x[i] ? largest : x[i];
    }
    const float scale = (largest - smallest) / 31.0F;
    const bool is_large = scale > std::numeric_limits<float>::max();
    const float inverse = scale > least_scale && !is_large ? 1.0F / scale : 0.0F;
    Group group{{}, scale, smallest};
    for (int i = 0; i < low_bits_group && !is_large; ++i) {
        const int code = static_cast<int>((x[i] - smallest) * inverse + 0.5F);
        group.codes[i] = static_cast<uint8_t>(code < 31 ? code : 31);
    }
    return group;
}

Group rounded(KvType type, const float *x) {
    if (!is_finite(x)) return {{}, std::numeric_limits<float>::quiet_NaN(), 0.0F};
    return type == KvType::q5_1 ? five_bits(x) : four_bits(x);
}

class Token {
  public:
    Token(KvType type, void (*to_f16)(const float *, uint16_t *, int), int dim, int64_t offset, uint8_t *rows)
        : layout_(type, dim), to_f16_(to_f16), offset_(offset), rows_(rows) {}

    void write_scales(int group, const Group &from) const {
        write_f16(layout_.scales(), group, from.scale);
        if (layout_.has_fifth) write_f16(layout_.smallest(), group, from.smallest);
    }
    const LowBitsLayout &layout() const { return layout_; }
    uint8_t *rows() const { return rows_; }
    int64_t offset() const { return offset_; }

  private:
    void write_f16(int64_t array, int group, float x) const {
        uint16_t bits;
        to_f16_(&x, &bits, 1);
        std::memcpy(rows_ + array + (int64_t{group} * kv_block_tokens + offset_) * 2, &bits, sizeof bits);
    }

    LowBitsLayout layout_;
    void (*to_f16_)(const float *, uint16_t *, int);
    int64_t offset_;
    uint8_t *rows_;
};

} // namespace

void write_low_bits_key(KvType type, void (*to_f16)(const float *, uint16_t *, int), const float *from, int dim,
                        int64_t offset, uint8_t *rows) {
    const Token token(type, to_f16, dim, offset, rows);
    constexpr int planes = low_bits_group / 8;
    for (int g = 0; g < token.layout().n_groups(); ++g) {
        const Group group = rounded(type, from + int64_t{g} * low_bits_group);
        token.write_scales(g, group);
        uint8_t *plane = rows + int64_t{g} * low_bits_group / 2 * kv_block_tokens + offset * 4;
        for (int p = 0; p < planes; ++p, plane += int64_t{4} * kv_block_tokens) {
            for (int i = 0; i < 4; ++i)
                plane[i] = static_cast<uint8_t>((group.codes[8 * p + i] & 15) | group.codes[8 * p + 4 + i] << 4);
        }
        if (!token.layout().has_fifth) continue;
        uint8_t fifth[4] = {};
        for (int d = 0; d < low_bits_group; ++d)
            fifth[d % 4] = static_cast<uint8_t>(fifth[d % 4] | (group.codes[d] >> 4) << d / 4);
        std::memcpy(rows + token.layout().fifth() + (int64_t{g} * kv_block_tokens + offset) * 4, fifth, sizeof fifth);
    }
}

void write_low_bits_value(KvType type, void (*to_f16)(const float *, uint16_t *, int), const float *from, int dim,
                          int64_t offset, uint8_t *rows) {
    const Token token(type, to_f16, dim, offset, rows);
    uint8_t *codes = rows + offset * dim / 2;
    uint8_t *fifth = rows + token.layout().fifth() + offset * dim / 8;
    std::memset(codes, 0, static_cast<size_t>(dim) / 2);
    if (token.layout().has_fifth) std::memset(fifth, 0, static_cast<size_t>(dim) / 8);
    for (int g = 0; g < token.layout().n_groups(); ++g) {
        const Group group = rounded(type, from + int64_t{g} * low_bits_group);
        token.write_scales(g, group);
        for (int i = 0; i < low_bits_group; ++i) {
            const int d = g * low_bits_group + i, half = dim / 2;
            uint8_t &byte = codes[d < half ? d : d - half];
            byte = static_cast<uint8_t>(byte | (group.codes[i] & 15) << (d < half ? 0 : 4));
            if (!token.layout().has_fifth) continue;
            uint8_t &bits = fifth[d / 16 * 2 + d % 2];
            bits = static_cast<uint8_t>(bits | (group.codes[i] >> 4) << d % 16 / 2);
        }
    }
}

} // namespace quire
