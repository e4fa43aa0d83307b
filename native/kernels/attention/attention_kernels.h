// The table of functions that each instruction set provides to paged_attention.cpp.
//
// The files below portable/, neon/, avx2/ and avx512/ instantiate attention_tile.h for their own Lanes type.  They are
// compiled with different flags, so only their tables may have external linkage: an inline function shared between them
// could be linked in its AVX-512 form and then run on any machine.
#pragma once

#include <cstdint>

#include "kernels/attention/paged_attention.h"
#include "kernels/isa.h"

namespace quire {

// Softmax rescales once per step of this many tokens and restarts at every chunk, whose states are merged.  Both are
// counted from position 0 whatever the query's window, so that a query's bits do not depend on the cut.
inline constexpr int kv_step_blocks = 4;
inline constexpr int kv_step_tokens = kv_step_blocks * kv_block_tokens;
inline constexpr int kv_chunk_tokens = 512;

// One query: one head of one row.
struct TileQuery {
    const float *q; // [head_dim]
    float *out; // [v_head_dim]
    const int32_t *table; // block table of its sequence
    int oldest, newest; // range of visible tokens of the sequence
    float sink; // a score without a value that is part of the softmax; -infinity means none
    DistanceBias bias; // bias of one head; token t uses column t + first_column
    int first_column;
};

// Either queries of several rows that read one kv head, grouped by sequence, rows in order; or queries of one row that
// read several kv heads, the same number for each, head by head.
struct AttentionTile {
    const AttentionShape *shape;
    const void *k_pool, *v_pool;
    int kv_head, n_kv_heads;
    int n_queries;
    TileQuery *queries;
    // The chunks to visit are [first_chunk, last_chunk).  If `partials` is not null, their states are stored there for
    // merge(): [last_chunk - first_chunk][n_queries][partial_floats].
    int first_chunk, last_chunk;
    float *partials;
    float *scratch; // scratch_floats() floats, 64-byte aligned
};

// Queries in a tile: the upper limit for any kernels, and the value most kernels use.
inline constexpr int max_tile_queries = 512, usual_tile_queries = 64;

// Internal linkage, because files of several instruction sets include this.
static constexpr int padded_floats(int n) { return (n + 15) / 16 * 16; }
// Floats of a query's partial state: the weighted sum of values, then the largest score and the sum of weights.
static constexpr int partial_floats(const AttentionShape &shape) { return padded_floats(shape.v_head_dim) + 16; }

struct AttentionKernels {
    void (*attend)(const AttentionTile &tile);
    // Compute results from the partial states of all chunks, bit for bit as if attend had visited them in one call.
    void (*merge)(const AttentionTile &tile);
    void (*to_f16)(const float *from, uint16_t *to, int n); // both round to nearest even
    void (*to_bf16)(const float *from, uint16_t *to, int n);
    // Write the codes and return their scale, the largest magnitude / 127; NaN if a value is not finite.
    float (*to_q8)(const float *from, int8_t *to, int n);
    int tile_queries = usual_tile_queries; // largest number of queries in a tile
    int64_t (*scratch_floats)(const AttentionShape &shape) = nullptr; // null: usual_scratch_floats
    // For tiles of at most `few_queries` queries per kv head, `attend_few` is faster; its results differ in the last
    // bits.
    int few_queries = 0;
    void (*attend_few)(const AttentionTile &tile) = nullptr;
};

namespace portable {
extern const AttentionKernels attention_kernels;
}
namespace neon {
extern const AttentionKernels attention_kernels;
}
namespace avx2 {
extern const AttentionKernels attention_kernels;
}
namespace avx512 {
extern const AttentionKernels attention_kernels;
}
// Only for K of 8 bits or fewer; the conversions to 16 bits are null.
namespace avx2vnni {
extern const AttentionKernels attention_kernels;
}
namespace avx512vnni {
extern const AttentionKernels attention_kernels;
}
// Only for the BF16 cache.
namespace avx512bf16 {
extern const AttentionKernels attention_kernels;
}
namespace avx512amx {
extern const AttentionKernels attention_kernels;
extern const AttentionKernels emulated_attention_kernels;
} // namespace avx512amx

} // namespace quire
