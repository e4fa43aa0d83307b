// What attention by tiles knows of each query of a tile: softmax and the weighted sum of values in the chunk at hand, and
// in all chunks before it.
#pragma once

#include <cstring>

#include "kernels/attention_tile.h"
#include "kernels/avx512amx/query_tiles.h"

namespace quire {
namespace {

class QueryStates {
  public:
    // `memory`: of 2 * n_queries * stride() numbers.
    QueryStates(const AttentionTile &tile, float *memory)
        : tile_(tile), shape_(*tile.shape), n_(tile.n_queries), stride_(whole_strips(shape_.v_head_dim)), sums_(memory),
          merged_(memory + n_ * stride_) {
        for (int i = 0; i < n_; ++i) is_started_[i] = false;
    }

    int64_t stride() const { return stride_; } // of a query's sums: whole tiles
    float *end() const { return merged_ + n_ * stride_; }

    // Of the chunk at hand; `has_sums` is false until it has any.
    float *sums(int i) { return sums_ + i * stride_; }
    float &largest(int i) { return largest_[i]; }
    float &total(int i) { return total_[i]; }
    bool &has_sums(int i) { return has_sums_[i]; }

    void begin_chunk() {
        for (int i = 0; i < n_; ++i) {
            largest_[i] = -infinity;
            total_[i] = 0.0F;
            has_sums_[i] = false;
        }
    }

    void end_chunk(int chunk) {
        const int begin = chunk * kv_chunk_tokens, end = begin + kv_chunk_tokens;
        for (int i = 0; i < n_; ++i) {
            if (!sees(shape_, tile_.queries[i].position, begin, end)) continue;
            if (tile_.partials != nullptr) {
                const int64_t at = static_cast<int64_t>(chunk - tile_.first_chunk) * n_ + i;
                keep(i, tile_.partials + at * partial_floats(shape_));
            } else if (is_started_[i]) {
                const SoftmaxState state{largest_ + i, total_ + i, sums(i)};
                merge_state<Lanes>(merged(i), state, static_cast<int>(stride_));
            } else {
                is_started_[i] = true;
                merged_largest_[i] = largest_[i];
                merged_total_[i] = total_[i];
                std::memcpy(merged_ + i * stride_, sums(i), static_cast<size_t>(stride_) * sizeof(float));
            }
        }
    }

    void write_results() {
        for (int i = 0; i < n_; ++i) {
            put_in_order(merged_ + i * stride_);
            write_result<Lanes>(tile_.queries[i], merged(i), shape_.v_head_dim);
        }
    }

  private:
    SoftmaxState merged(int i) { return {merged_largest_ + i, merged_total_ + i, merged_ + i * stride_}; }

    void put_in_order(float *sums) {
        for (int64_t d = 0; d < stride_; d += 2 * lanes) {
            const __m512 two[] = {_mm512_loadu_ps(sums + d), _mm512_loadu_ps(sums + d + lanes)};
            store_sums(two, sums + d);
        }
    }

    void keep(int i, float *partial) {
        const int n = padded_floats(shape_.v_head_dim);
        put_in_order(sums(i));
        std::memcpy(partial, sums(i), static_cast<size_t>(n) * sizeof(float));
        partial[n] = largest_[i];
        partial[n + 1] = total_[i];
    }

    const AttentionTile &tile_;
    const AttentionShape &shape_;
    int n_;
    int64_t stride_;
    float *sums_, *merged_;
    bool is_started_[max_tile_queries], has_sums_[max_tile_queries]; // of an earlier chunk, of this one
    float largest_[max_tile_queries], total_[max_tile_queries], merged_largest_[max_tile_queries],
        merged_total_[max_tile_queries];
};

} // namespace
} // namespace quire
