// The state of each query of a tile: softmax and the weighted sum of values, in the current chunk and in all chunks
// before it.
//
// Each instruction set's file includes this once, after its Lanes; nothing here has external linkage.
#pragma once

#include "kernels/attention/attention_steps.h"

namespace quire {
namespace {

template <class L> class QueryStates {
  public:
    // `memory` has 2 * n_queries * stride floats; `stride` is the distance of the queries' sums, at least
    // padded_floats(v_head_dim).
    QueryStates(const AttentionTile &tile, float *memory, int stride)
        : tile_(tile), shape_(*tile.shape), n_(tile.n_queries), stride_(stride), sums_(memory),
          merged_(memory + int64_t{n_} * stride_) {
        for (int i = 0; i < n_; ++i) is_started_[i] = false;
    }

    int stride() const { return stride_; }
    float *end() const { return merged_ + int64_t{n_} * stride_; }

    // The state in the current chunk.
    float *sums(int i) { return sums_ + int64_t{i} * stride_; }
    float &largest(int i) { return largest_[i]; }
    float &total(int i) { return total_[i]; }

    // Reset everything but the sums.
    void begin_chunk() {
        for (int i = 0; i < n_; ++i) {
            largest_[i] = -infinity;
            total_[i] = 0.0F;
        }
    }

    // put_in_order(sums) restores the order of dimensions.
    template <class PutInOrder> void end_chunk(int chunk, PutInOrder put_in_order) {
        const int begin = chunk * kv_chunk_tokens, end = begin + kv_chunk_tokens;
        for (int i = 0; i < n_; ++i) {
            if (!sees(tile_.queries[i], begin, end)) continue;
            if (tile_.partials != nullptr) {
                put_in_order(sums(i));
                keep(i,
                     tile_.partials + (int64_t{chunk - tile_.first_chunk} * n_ + i) * int64_t{partial_floats(shape_)});
            } else if (is_started_[i]) {
                merge_state<L>(merged(i), {largest_ + i, total_ + i, sums(i)}, stride_);
            } else {
                is_started_[i] = true;
                merged_largest_[i] = largest_[i];
                merged_total_[i] = total_[i];
                __builtin_memcpy(merged(i).sums, sums(i), static_cast<size_t>(stride_) * sizeof(float));
            }
        }
    }

    template <class PutInOrder> void write_results(PutInOrder put_in_order) {
        for (int i = 0; i < n_; ++i) {
            put_in_order(merged(i).sums);
            write_result<L>(tile_.queries[i], merged(i), shape_.v_head_dim);
        }
    }

  private:
    SoftmaxState merged(int i) { return {merged_largest_ + i, merged_total_ + i, merged_ + int64_t{i} * stride_}; }

    void keep(int i, float *partial) {
        const int n = padded_floats(shape_.v_head_dim);
        __builtin_memcpy(partial, sums(i), static_cast<size_t>(n) * sizeof(float));
        partial[n] = largest_[i];
        partial[n + 1] = total_[i];
    }

    const AttentionTile &tile_;
    const AttentionShape &shape_;
    int n_, stride_;
    float *sums_, *merged_;
    bool is_started_[max_tile_queries]; // it has a state from an earlier chunk
    float largest_[max_tile_queries], total_[max_tile_queries], merged_largest_[max_tile_queries],
        merged_total_[max_tile_queries];
};

// Compute the results of a tile from the stored states of its chunks.
template <class L> void merge_tile(const AttentionTile &tile) {
    const AttentionShape &shape = *tile.shape;
    const int n_sums = padded_floats(shape.v_head_dim);
    for (int i = 0; i < tile.n_queries; ++i) {
        SoftmaxState merged{};
        for (int chunk = tile.first_chunk; chunk < tile.last_chunk; ++chunk) {
            const int begin = chunk * kv_chunk_tokens;
            if (!sees(tile.queries[i], begin, begin + kv_chunk_tokens)) continue;
            const int64_t at = static_cast<int64_t>(chunk - tile.first_chunk) * tile.n_queries + i;
            float *partial = tile.partials + at * partial_floats(shape);
            const SoftmaxState state{partial + n_sums, partial + n_sums + 1, partial};
            if (merged.sums == nullptr) {
                merged = state;
            } else {
                merge_state<L>(merged, state, n_sums);
            }
        }
        write_result<L>(tile.queries[i], merged, shape.v_head_dim);
    }
}

} // namespace
} // namespace quire
