// The likeliest logits of a device's rows without the rows: the device finds the strips with the largest maxima, in
// which the likeliest must be, and kilobytes of them are brought to the host.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/device_faults.h"
#include "graph/stock/lowering.h"
#include "graph/trace/step_batch.h"

namespace quire {

// Strips of each row from which its k likeliest are known, where k is given (StepBatch::likeliest); 0: no row gains
// by it.  A bucket: graphs are built for it.
int strips_wanted(std::span<const int32_t> likeliest, int64_t n_vocab);
int most_strips(int64_t n_vocab);
// Nodes that find so many strips of rows of logits [n_vocab, rows]; nothing where the device lacks an operation of
// them.
FoundStrips find_strips(ggml_context *context, ggml_backend *device, ggml_tensor *logits, int n_strips);

class LogitStrips {
  public:
    explicit LogitStrips(const Backend &backend) : backend_(backend) {}
    // Asks the device for strips of the rows whose k likeliest tell enough, and for the others.  `rows`: the target,
    // [likeliest.size(), n_vocab], which nobody else writes to unless it is said.
    void ask(const LoweredGraph &graph, std::span<const int32_t> likeliest, float *rows);
    // When all that was asked for is there: rows are -inf but for their strips.  Those whose likeliest the strips do
    // not tell, as others are equal or one is not a number, are fetched.
    void finish();
    // As Executor::maxima().
    float *maxima() { return maxima_.data(); }
    void forget_rows() { written_.clear(); } // they were written to, or lie elsewhere

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
    // Where they are in that memory: [row, strip, logit_strip], [row, strip], [row].
    const float *values_ = nullptr, *sums_ = nullptr;
    const int32_t *ids_ = nullptr;
    std::vector<float> maxima_; // [row, strip of the vocabulary]
    std::vector<std::vector<int32_t>> written_; // strips of each row that are not -inf; one below 0: all
};

} // namespace quire
