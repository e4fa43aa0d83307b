// The softmax state of each query of a tile.  Sums are in the order in which products of tiles leave them.
#pragma once

#include "kernels/attention/query_states.h"
#include "kernels/avx512/column_pairs.h"
#include "kernels/avx512/lanes.h"
#include "kernels/avx512amx/query_tiles.h"

namespace quire {
namespace {

constexpr int whole_strips(int dim) { return (dim + 31) / 32 * 32; }

class TileStates : public QueryStates<Lanes> {
    using Base = QueryStates<Lanes>;

  public:
    // `memory` has 2 * n_queries * stride() numbers.
    TileStates(const AttentionTile &tile, float *memory)
        : Base(tile, memory, whole_strips(tile.shape->v_head_dim)), n_(tile.n_queries) {}

    // False until the chunk has sums for the query.
    bool &has_sums(int i) { return has_sums_[i]; }

    void begin_chunk() {
        Base::begin_chunk();
        for (int i = 0; i < n_; ++i) has_sums_[i] = false;
    }
    void end_chunk(int chunk) {
        Base::end_chunk(chunk, [this](float *sums) { put_in_order(sums); });
    }
    void write_results() {
        Base::write_results([this](float *sums) { put_in_order(sums); });
    }

  private:
    void put_in_order(float *sums) const {
        for (int d = 0; d < stride(); d += 2 * lanes) {
            const __m512 two[] = {_mm512_loadu_ps(sums + d), _mm512_loadu_ps(sums + d + lanes)};
            store_sums(two, sums + d);
        }
    }

    int n_;
    bool has_sums_[max_tile_queries];
};

} // namespace
} // namespace quire
