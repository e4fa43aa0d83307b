// The 8-bit cache: codes of -127 to 127 with a scale per token and head, so that a token is written without a look at its
// neighbours.  Tokens of a block and head: the codes, then a float of scale for each token.
#pragma once

#include <cstddef>

namespace quire {

inline constexpr int q8_group = 4; // dimensions that lie together in K, as dot products of bytes take them

// Functions here have internal linkage: files of several instruction sets include them.
static constexpr size_t q8_codes_bytes(int head_dim, int n_tokens) {
    return static_cast<size_t>((head_dim + q8_group - 1) / q8_group * q8_group) * static_cast<size_t>(n_tokens);
}
static constexpr size_t q8_head_bytes(int head_dim, int n_tokens) {
    return q8_codes_bytes(head_dim, n_tokens) + static_cast<size_t>(n_tokens) * sizeof(float);
}

} // namespace quire
