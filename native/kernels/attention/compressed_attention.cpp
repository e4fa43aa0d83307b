#include "kernels/attention/compressed_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/index_scores.h"

namespace quire {
namespace {

constexpr float none = -std::numeric_limits<float>::infinity();

} // namespace

void compress_window(const CompressedWindow &window, const int32_t *table, int32_t position, float *out) {
    static thread_local std::vector<float> gates, kv, largest, totals;
    const int every = window.every, n = window.n_out(), row_floats = window.kv.dim;
    const int first = std::max(0, position + 1 - (window.overlaps ? 2 : 1) * every), n_tokens = position + 1 - first;
    gates.resize(static_cast<size_t>(n_tokens) * static_cast<size_t>(row_floats));
    kv.resize(static_cast<size_t>(row_floats));
    largest.assign(static_cast<size_t>(n), none);
    totals.assign(static_cast<size_t>(n), 0.0F);
    // Where a token's part begins in its row.
    auto part = [&](int i) { return window.overlaps && first + i > position - every ? n : 0; };
    for (int i = 0; i < n_tokens; ++i) {
        float *gate = gates.data() + int64_t{i} * row_floats;
        window.gate.read(slot_of(table, first + i), gate);
        const float *bias = window.bias + int64_t{(first + i) % every} * row_floats;
        gate += part(i);
        bias += part(i);
        for (int d = 0; d < n; ++d) {
            gate[d] += bias[d];
            largest[static_cast<size_t>(d)] = std::max(largest[static_cast<size_t>(d)], gate[d]);
        }
    }
    std::fill_n(out, n, 0.0F);
    for (int i = 0; i < n_tokens; ++i) {
        const float *gate = gates.data() + int64_t{i} * row_floats + part(i);
        window.kv.read(slot_of(table, first + i), kv.data());
        const float *x = kv.data() + part(i);
        for (int d = 0; d < n; ++d) {
            const float weight = std::exp(gate[d] - largest[static_cast<size_t>(d)]);
            totals[static_cast<size_t>(d)] += weight;
            out[d] += weight * x[d];
        }
    }
    for (int d = 0; d < n; ++d) out[d] /= totals[static_cast<size_t>(d)];
}

void pick_compressed_rows(const PickedRows &picked, const int32_t *table, int n, const float *q, const float *weights,
                          float *mask) {
    constexpr int together = kv_block_tokens; // rows that are scored at once
    static thread_local std::vector<float> row, columns, scores;
    const int dim = picked.pool.dim, every = picked.pool.every;
    row.resize(static_cast<size_t>(dim));
    scores.resize(static_cast<size_t>((n + together - 1) / together * together));
    if (n > picked.n_picked) {
        for (int begin = 0; begin < n; begin += together) {
            columns.assign(static_cast<size_t>(dim) * together, 0.0F);
            for (int i = 0; i < std::min(together, n - begin); ++i) {
                picked.pool.read(slot_of(table, (begin + i + 1) * every - 1), row.data());
                for (int d = 0; d < dim; ++d)
                    columns[static_cast<size_t>(d * together + i)] = row[static_cast<size_t>(d)];
            }
            score_block(q, weights, picked.n_head, dim, columns.data(), scores.data() + begin);
        }
    }
    pick_largest(scores.data(), n, picked.n_picked, mask);
}

RowAttention::RowAttention(const float *q, int n_head, int dim, float scale, const float *sinks, float *out)
    : q_(q), n_head_(n_head), dim_(dim), scale_(scale), out_(out), memory_([]() -> Memory & {
          static thread_local Memory memory;
          return memory;
      }()) {
    memory_.rows.resize(static_cast<size_t>(dim) * together);
    memory_.columns.resize(static_cast<size_t>(dim) * together);
    memory_.largest.assign(static_cast<size_t>(n_head), none);
    memory_.totals.assign(static_cast<size_t>(n_head), 0.0F);
    if (sinks != nullptr) { // a score without a value
        std::copy_n(sinks, n_head, memory_.largest.begin());
        std::fill(memory_.totals.begin(), memory_.totals.end(), 1.0F);
    }
    std::fill_n(out, int64_t{n_head} * dim, 0.0F);
}

void RowAttention::add(const RowPool &pool, int32_t slot) {
    float *row = memory_.rows.data() + int64_t{n_waiting_} * dim_;
    pool.read(slot, row);
    for (int d = 0; d < dim_; ++d) memory_.columns[static_cast<size_t>(d * together + n_waiting_)] = row[d];
    if (++n_waiting_ == together) add_waiting();
}

void RowAttention::add_waiting() {
    for (int head = 0; head < n_head_; ++head) {
        const float *q = q_ + int64_t{head} * dim_;
        float scores[together] = {};
        for (int d = 0; d < dim_; ++d) {
            const float *column = memory_.columns.data() + int64_t{d} * together;
            for (int i = 0; i < together; ++i) scores[i] += q[d] * column[i]; // some are of rows before: unused
        }
        float &largest = memory_.largest[static_cast<size_t>(head)], &total = memory_.totals[static_cast<size_t>(head)];
        float *out = out_ + int64_t{head} * dim_;
        float most = largest;
        for (int i = 0; i < n_waiting_; ++i) most = std::max(most, scores[i] *= scale_);
        if (most > largest) {
            const float fade = std::exp(largest - most);
            total *= fade;
            for (int d = 0; d < dim_; ++d) out[d] *= fade;
            largest = most;
        }
        for (int i = 0; i < n_waiting_; ++i) {
            const float weight = std::exp(scores[i] - largest), *row = memory_.rows.data() + int64_t{i} * dim_;
            total += weight;
            for (int d = 0; d < dim_; ++d) out[d] += weight * row[d];
        }
    }
    n_waiting_ = 0;
}

void RowAttention::finish() {
    if (n_waiting_ > 0) add_waiting();
    for (int head = 0; head < n_head_; ++head) {
        const float part = 1.0F / memory_.totals[static_cast<size_t>(head)];
        for (int d = 0; d < dim_; ++d) out_[int64_t{head} * dim_ + d] *= part;
    }
}

} // namespace quire
