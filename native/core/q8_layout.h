// Layout of the 8-bit cache: codes from -127 to 127 with one scale per token and head, so a token can be written
// without reading its neighbours.  The tokens of a block and head are stored as all their codes, then one float scale
// per token.
#pragma once

#include <cstddef>

namespace quire {

inline constexpr int q8_group = 4; // dimensions stored together in K, because dot products of bytes sum groups of four

// Functions here have internal linkage, because files compiled for different instruction sets include them.
static constexpr size_t q8_codes_bytes(int head_dim, int n_tokens) {
    return static_cast<size_t>((head_dim + q8_group - 1) / q8_group * q8_group) * static_cast<size_t>(n_tokens);
}
static constexpr size_t q8_head_bytes(int head_dim, int n_tokens) {
    return q8_codes_bytes(head_dim, n_tokens) + static_cast<size_t>(n_tokens) * sizeof(float);
}

} // namespace quire
