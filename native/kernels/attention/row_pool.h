// Rows of a layer of the cache that are stored whole, one after the other, as compressed attention reads them: a few of
// many, anywhere.  (paged_attention.h has the layout of K and V of other layers.)
#pragma once

#include "kernels/attention/paged_attention.h"

namespace quire {

struct RowPool {
    void *data; // [n_blocks, rows of a block, dim]
    KvType type; // not a coded one
    int dim;
    int every; // tokens that share a row (kv/cache_spec.h)

    // `slot`: of the last token of a row.
    void write(int32_t slot, const float *row) const;
    void read(int32_t slot, float *row) const;

  private:
    int64_t first(int32_t slot) const { // number of the row
        return int64_t{slot / (every < kv_block_tokens ? every : kv_block_tokens)} * dim;
    }
};

inline int32_t slot_of(const int32_t *table, int32_t position) {
    return table[position / kv_block_tokens] * kv_block_tokens + position % kv_block_tokens;
}

} // namespace quire
