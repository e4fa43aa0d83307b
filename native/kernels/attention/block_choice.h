// The blocks of tokens that an indexer picks for a row (MiniMax 2026), for each of its heads: those with the largest
// score q . k of any token, and the last blocks, the row's own one included.
//
// The bits of a row's choice depend only on its own query and keys.
#pragma once

#include "kernels/attention/paged_attention.h"

namespace quire {

struct BlockChoice {
    int n_head, dim;
    int block; // tokens, a multiple of 32
    int n_picked, n_local; // n_local: the last ones, which are always picked; at most n_picked
    int most_tokens() const { return n_picked * block; }
    // Numbers that tell what a head picks: how many tokens the row sees, then the blocks of the cache that hold them,
    // ascending and counted from the start of the sequence.
    int64_t n_numbers() const { return 1 + most_tokens() / kv_block_tokens; }
};

// Keys of a block of the cache, [dim, 32].
class IndexKeys {
  public:
    virtual ~IndexKeys() = default;
    virtual void read(int32_t block, float *keys) const = 0;
};

// q [n_head, dim], out [n_head, n_numbers].
void pick_blocks(const BlockChoice &choice, const IndexKeys &keys, const int32_t *table, int32_t position,
                 const float *q, float *out);

} // namespace quire
