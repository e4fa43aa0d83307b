// Attention with a BF16 cache by tiles, for one query and for many, so that a query's bits depend on it alone.  Queries
// and weights are rounded to BF16.  A tile product covers 32 dimensions of a score, or the 32 tokens of a block for the
// weighted sum of values.
//
// For a few queries, arranging keys and values in tiles takes longer than multiplying them with VDPBF16PS.
#include "kernels/avx512amx/query_attention.h"

namespace quire {
namespace {

template <class Tiles> void attend(const AttentionTile &tile) {
    QueryAttention<Tiles>(tile).run();
    Tiles::release();
}

void to_bf16(const float *from, uint16_t *to, int n) { avx512::attention_kernels.to_bf16(from, to, n); }

template <class Tiles>
constexpr AttentionKernels kernels_of = {attend<Tiles>,    merge_tile<Lanes>,     nullptr, to_bf16, nullptr,
                                         max_tile_queries, query_attention_floats};

#if !defined(QUIRE_WITHOUT_AVX512AMX)
void attend_few(const AttentionTile &tile) { avx512bf16::attention_kernels.attend(tile); }

constexpr AttentionKernels with_few(AttentionKernels kernels) {
    kernels.few_queries = 4;
    kernels.attend_few = attend_few;
    return kernels;
}
#endif

} // namespace

#if !defined(QUIRE_WITHOUT_AVX512AMX)
const AttentionKernels avx512amx::attention_kernels = with_few(kernels_of<QueryTileRegisters>);
#endif
#if !defined(QUIRE_WITHOUT_EMULATED_TILES)
const AttentionKernels avx512amx::emulated_attention_kernels = kernels_of<QueryTilesInSoftware>;
#endif

} // namespace quire
