// What each instruction set offers to paged_attention.cpp.
//
// The files below portable/, avx2/ and avx512/ instantiate attention_tile.h for their own Lanes type.  They are
// compiled with different flags, so nothing in them may have external linkage but their table: an inline function
// shared between them could be linked in its AVX-512 form and then run on any machine.
#pragma once

#include <cstdint>

#include "kernels/isa.h"
#include "kernels/paged_attention.h"

namespace quire {

// Some query rows of one sequence, for some of the query heads that read one kv head.
struct AttentionTile {
    const AttentionShape *shape;
    const int32_t *table; // the sequence's block table
    const float *q;       // the first row's first head
    float *out;           // its output
    const float *sinks;   // the first head's, or null
    const void *k_pool, *v_pool;
    int kv_head;
    int n_heads; // of this tile
    int n_rows;
    int position;   // of the first row
    float *scratch; // tile_scratch_floats(...) floats, 64-byte aligned
};

inline constexpr int max_tile_queries = 32;

struct AttentionKernels {
    void (*attend)(const AttentionTile &tile);
    void (*to_f16)(const float *from, uint16_t *to, int n); // both: to nearest even
    void (*to_bf16)(const float *from, uint16_t *to, int n);
};

const AttentionKernels &attention_kernels(Isa isa);

namespace portable {
extern const AttentionKernels attention_kernels;
}
namespace avx2 {
extern const AttentionKernels attention_kernels;
}
namespace avx512 {
extern const AttentionKernels attention_kernels;
}

} // namespace quire
