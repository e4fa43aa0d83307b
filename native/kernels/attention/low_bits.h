// Caches of 4 and 5 bits.  Groups of 32 numbers of a token and head share a scale, and with 5 bits a smallest value.
// Codes, scales, smallest values and sizes are those of ggml's q4_0 and q5_1, in an order of Quire's own.
//
// Layout of a block and head, with n = dim / 32 groups:
//   codes' low four bits   K [n][4][32 tokens][4] bytes: dimension 8 p + i of plane p in the lower half of a byte, and
//                          8 p + 4 + i in the upper;  V [32 tokens][dim / 2]: d in the lower half, dim / 2 + d in the upper
//   their fifth bits       K [n][32 tokens][4]: bit j of byte i is of dimension 4 j + i;  V [32 tokens][dim / 8]: bit j of
//                          byte 2 k + i is of dimension 16 k + 2 j + i
//   scales, smallest       both f16 [n][32 tokens]
// Tokens do not share bytes, so threads may write different tokens at the same time.
//
// Kernels widen a block once for all queries of a tile before they read it: to codes of 8 bits like those of the 8-bit
// cache, then scales and smallest values in f32 [n][32 tokens].
#pragma once

#include <cstdint>

#include "kernels/attention/paged_attention.h"

namespace quire {

inline constexpr int low_bits_group = 32; // dimensions that share a scale

// Write a token's row; `rows` is K or V of its block and head, to_f16 rounds to nearest even.
void write_low_bits_key(KvType type, void (*to_f16)(const float *, uint16_t *, int), const float *from, int dim,
                        int64_t offset, uint8_t *rows);
void write_low_bits_value(KvType type, void (*to_f16)(const float *, uint16_t *, int), const float *from, int dim,
                          int64_t offset, uint8_t *rows);

namespace {

// The element type of such a cache in C++.
struct LowBits {
    uint8_t byte;
};

struct LowBitsLayout {
    int dim;
    bool has_fifth;

    LowBitsLayout(KvType type, int dim_) : dim(dim_), has_fifth(type == KvType::q5_1) {}
    int n_groups() const { return dim / low_bits_group; }
    int64_t fifth() const { return int64_t{dim} / 2 * kv_block_tokens; }
    int64_t scales() const { return fifth() + (has_fifth ? int64_t{dim} / 8 * kv_block_tokens : 0); }
    int64_t smallest() const { return scales() + int64_t{n_groups()} * kv_block_tokens * 2; }
    int64_t bytes() const { return has_fifth ? smallest() + int64_t{n_groups()} * kv_block_tokens * 2 : smallest(); }

    // Bytes of a widened block.
    static constexpr int64_t wide_bytes(int dim) { return int64_t{dim} * kv_block_tokens + 2 * wide_scales_bytes(dim); }
    static constexpr int64_t wide_scales_bytes(int dim) {
        return int64_t{dim} / low_bits_group * kv_block_tokens * static_cast<int64_t>(sizeof(float));
    }
    static const float *wide_scales(const int8_t *wide, int dim) {
        return reinterpret_cast<const float *>(wide + int64_t{dim} * kv_block_tokens);
    }
    static const float *wide_smallest(const int8_t *wide, int dim) {
        return wide_scales(wide, dim) + int64_t{dim} / low_bits_group * kv_block_tokens;
    }
};

} // namespace
} // namespace quire
