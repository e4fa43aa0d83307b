// Compressed attention (DeepSeek-AI 2026): a row attends to the last tokens, and to rows of which each stands for some
// tokens in a row, or to those of them that an indexer picks.
//
// The bits of a row's results depend only on its own query and the rows that it sees.
#pragma once

#include <span>
#include <vector>

#include "kernels/attention/row_pool.h"

namespace quire {

// The mean of the last `every` tokens' rows up to `position`, weighed by softmax(gate + bias) for each number.  Where
// windows overlap, rows are twice as long as the mean: their second halves take part in it, and so do the first halves
// of the `every` tokens before, if there are any.
struct CompressedWindow {
    RowPool kv, gate;
    const float *bias; // [every, kv.dim]
    int every;
    bool overlaps;
    int n_out() const { return overlaps ? kv.dim / 2 : kv.dim; }
};
void compress_window(const CompressedWindow &window, const int32_t *table, int32_t position, float *out);

// Write 0 to `mask` for the n_picked of the first n compressed rows whose scores (index_scores.h) are the largest, else
// `not_picked`.
struct PickedRows {
    RowPool pool;
    int n_head, n_picked;
};
void pick_compressed_rows(const PickedRows &picked, const int32_t *table, int n, const float *q, const float *weights,
                          float *mask);

// Attention of some heads of one row to rows that are K and V of all of them.
class RowAttention {
  public:
    // q and out [n_head, dim]; sinks [n_head], or null.
    RowAttention(const float *q, int n_head, int dim, float scale, const float *sinks, float *out);
    void add(const RowPool &pool, int32_t slot);
    void finish();

  private:
    static constexpr int together = 32; // rows that are added at once
    struct Memory {
        std::vector<float> rows, columns; // the waiting rows, [together, dim], and the same as [dim, together]
        std::vector<float> largest, totals; // by head: the largest score, and the sum of exponentials
    };
    void add_waiting();
    const float *q_;
    int n_head_, dim_;
    float scale_;
    float *out_;
    int n_waiting_ = 0;
    Memory &memory_; // the thread's
};

} // namespace quire
