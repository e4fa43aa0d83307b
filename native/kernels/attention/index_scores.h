// The scores by which an indexer picks the tokens that a row attends to (DeepSeek-AI 2025).
//
// Token t of a row gets the sum over heads h of weights[h] * max(q[h] . k[t], 0).  The bits of a row's scores depend only
// on its own query, weights and keys.
#pragma once

#include "kernels/attention/paged_attention.h"

namespace quire {

// A token that was not picked adds this to the scores of attention: less than any score, and finite, so that a maximum
// over such tokens can be subtracted.
inline constexpr float not_picked = -1e30F;

float from_f16(uint16_t bits);
// Keys of a block, of one head: [head_dim, 32], exactly as stored.  `type` is not of 4 or 5 bits.
void read_block_keys(KvType type, const void *block, int head_dim, float *keys);
// Scores of a block's 32 tokens for one row: q [n_head, head_dim], weights [n_head].
void score_block(const float *q, const float *weights, int n_head, int head_dim, const float *keys, float *scores);
// Write 0 for the n_picked tokens with the largest of n scores, else `not_picked`.  Of equal scores the first count more.
void pick_largest(const float *scores, int n, int n_picked, float *mask);

} // namespace quire
