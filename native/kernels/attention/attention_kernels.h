// What each instruction set offers to paged_attention.cpp.
//
// The files below portable/, neon/, avx2/ and avx512/ instantiate attention_tile.h for their own Lanes type.  They are
// compiled with different flags, so nothing in them may have external linkage but their table: an inline function
// shared between them could be linked in its AVX-512 form and then run on any machine.
#pragma once

#include <cstdint>

#include "kernels/attention/paged_attention.h"
#include "kernels/isa.h"

namespace quire {

// Softmax rescales once per step of this many tokens, and starts anew (to be merged) at every chunk.  Both are counted
// from position 0, whatever a query's window is: that is part of what fixes a query's bits.
inline constexpr int kv_step_blocks = 4;
inline constexpr int kv_step_tokens = kv_step_blocks * kv_block_tokens;
inline constexpr int kv_chunk_tokens = 512;

// One head of one row.
struct TileQuery {
    const float *q;       // [head_dim]
    float *out;           // [v_head_dim]
    const int32_t *table; // its sequence's block table
    int oldest, newest; // tokens of the sequence that it sees
    float sink; // a score without a value that joins the softmax; -infinity: none
    DistanceBias bias; // one head's; token t has column t + first_column
    int first_column;
};

// Queries that read one kv head, those of one sequence side by side, rows in order; or those of one row that read several
// kv heads, as many of each, head after head.
struct AttentionTile {
    const AttentionShape *shape;
    const void *k_pool, *v_pool;
    int kv_head, n_kv_heads;
    int n_queries;
    TileQuery *queries;
    // Chunks [first_chunk, last_chunk) are visited.  Where `partials` is not null their state is left there, for merge
    // to put together with the others': [last_chunk - first_chunk][n_queries][partial_floats].
    int first_chunk, last_chunk;
    float *partials;
    float *scratch; // as many floats as the kernels want, 64-byte aligned
};

// Of any kernels, and of most.
inline constexpr int max_tile_queries = 512, usual_tile_queries = 64;

// Internal linkage, as files of several instruction sets include this.
static constexpr int padded_floats(int n) { return (n + 15) / 16 * 16; }
// Weighted sum of values, then largest score and sum of weights.
static constexpr int partial_floats(const AttentionShape &shape) { return padded_floats(shape.v_head_dim) + 16; }

struct AttentionKernels {
    void (*attend)(const AttentionTile &tile);
    // Results from the partial states of all of the tile's chunks; bits as if attend had visited them in one call.
    void (*merge)(const AttentionTile &tile);
    void (*to_f16)(const float *from, uint16_t *to, int n); // both: to nearest even
    void (*to_bf16)(const float *from, uint16_t *to, int n);
    // Codes and their scale, largest magnitude / 127; what is not finite makes the scale not a number.
    float (*to_q8)(const float *from, int8_t *to, int n);
    int tile_queries = usual_tile_queries; // at most
    int64_t (*scratch_floats)(const AttentionShape &shape) = nullptr; // null: as attention_tile.h has it
    // For tiles of at most `few_queries` queries per kv head `attend_few` is faster; its results differ in the last bits.
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
// For K of 8 bits or fewer only; the conversions to 16 bits are null.
namespace avx2vnni {
extern const AttentionKernels attention_kernels;
}
namespace avx512vnni {
extern const AttentionKernels attention_kernels;
}
// For the BF16 cache only.
namespace avx512bf16 {
extern const AttentionKernels attention_kernels;
}
namespace avx512amx {
extern const AttentionKernels attention_kernels;
extern const AttentionKernels emulated_attention_kernels;
} // namespace avx512amx

} // namespace quire
