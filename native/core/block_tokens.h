// Tokens of one block of the cache.  The kernels' layouts of K and V are built around this number.
#pragma once

namespace quire {

inline constexpr int kv_block_tokens = 32;

} // namespace quire
