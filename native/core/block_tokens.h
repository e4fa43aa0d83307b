// The number of tokens in a cache block.  The kernels' layouts of K and V are built around it.
#pragma once

namespace quire {

inline constexpr int kv_block_tokens = 32;

} // namespace quire
