// Fetches the likeliest logits from a device without whole rows.  The device finds the strips with the largest maxima,
// which contain the likeliest logits, and the host fetches these kilobytes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/device_faults.h"
#include "graph/stock/lowering.h"
#include "graph/trace/step_batch.h"

namespace quire {

// The number of strips per row that determine its k likeliest logits, for rows with a k (StepBatch::likeliest); 0: no row
// benefits.  Rounded to a bucket, as graphs are built for it.
int strips_wanted(std::span<const int32_t> likeliest, int64_t n_vocab);
int most_strips(int64_t n_vocab);
// Adds nodes that find this many strips of each row of logits [n_vocab, rows].  Empty if the device lacks an operation.
FoundStrips find_strips(ggml_context *context, ggml_backend *device, ggml_tensor *logits, int n_strips);

class LogitStrips {
  public:
    explicit LogitStrips(const Backend &backend) : backend_(backend) {}
    // Requests the strips of rows with a k, and all of the other rows.  `rows`: the target, [likeliest.size(), n_vocab];
    // call forget_rows() after writing to it elsewhere.
    void ask(const LoweredGraph &graph, std::span<const int32_t> likeliest, float *rows);
    // Call once the requested data has arrived: rows become -inf outside of their strips.  Rows whose likeliest logits
    // are not determined, because of ties or NaN, are fetched whole.
    void finish();
    // See Executor::maxima().
    float *maxima() { return maxima_.data(); }
    void forget_rows() { written_.clear(); } // after another writer, or a move

  private:
    struct FreeBuffer {
        void operator()(ggml_backend_buffer *buffer) const { free_buffer(buffer); }
    };
    bool is_likely(size_t row) const;
    void clear(size_t row);
    bool put(size_t row);
    void fetch(size_t row);
    float *row(size_t i) { return rows_ + i * n_vocab_; }

    const Backend &backend_;
    const LoweredGraph *graph_ = nullptr;
    std::vector<int32_t> likeliest_;
    float *rows_ = nullptr;
    size_t n_vocab_ = 0, n_strips_ = 0; // in a row of the vocabulary
    std::unique_ptr<ggml_backend_buffer, FreeBuffer> transfer_;
    size_t transfer_bytes_ = 0;
    // Their places in that memory: [row, strip, logit_strip], [row, strip], [row].
    const float *values_ = nullptr, *sums_ = nullptr;
    const int32_t *ids_ = nullptr;
    std::vector<float> maxima_; // [row, strip of the vocabulary]
    std::vector<std::vector<int32_t>> written_; // strips of each row that are not -inf; {-1}: all
};

} // namespace quire
