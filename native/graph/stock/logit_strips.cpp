#include "graph/stock/logit_strips.h"

#include <ggml-backend.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/stock/input_memory.h"

namespace quire {
namespace {

constexpr int buckets[] = {8, 32, 64, 128};
constexpr int64_t least_saved = 4; // a row has at least this many times the strips that are fetched
constexpr int32_t all_of_row = -1;

bool is_worth(int n_strips, int64_t n_vocab) {
    const auto strip = static_cast<int64_t>(logit_strip);
    return n_vocab % strip == 0 && n_strips * least_saved * strip <= n_vocab;
}

} // namespace

int most_strips(int64_t n_vocab) {
    int most = 0;
    for (int n : buckets)
        if (is_worth(n, n_vocab)) most = n;
    return most;
}

// One more strip than tokens, as a bound for the tokens outside.
int strips_wanted(std::span<const int32_t> likeliest, int64_t n_vocab) {
    const int most = most_strips(n_vocab);
    int32_t wanted = 0;
    for (int32_t k : likeliest)
        if (k > 0 && k < most) wanted = std::max(wanted, k + 1);
    if (wanted == 0) return 0;
    return *std::ranges::find_if(buckets, [wanted](int n) { return n >= wanted; });
}

FoundStrips find_strips(ggml_context *context, ggml_backend *device, ggml_tensor *logits, int n_strips) {
    if (!ggml_is_contiguous(logits)) return {};
    const auto strip = static_cast<int>(logit_strip);
    ggml_tensor *maxima = ggml_pool_1d(context, logits, GGML_OP_POOL_MAX, strip, strip, 0);
    ggml_tensor *ids = ggml_top_k(context, maxima, n_strips);
    ggml_tensor *strips = ggml_reshape_3d(context, logits, strip, logits->ne[0] / strip, logits->ne[1]);
    // Sum strips first, as one block of threads would sum a whole row.
    ggml_tensor *by_strip = ggml_sum_rows(context, strips);
    ggml_tensor *sums = ggml_sum_rows(context, ggml_reshape_2d(context, by_strip, strips->ne[1], strips->ne[2]));
    const FoundStrips found{ggml_get_rows(context, strips, ids), ids, sums};
    for (const ggml_tensor *node : {maxima, found.ids, found.values, by_strip, found.sums})
        if (!ggml_backend_supports_op(device, node)) return {};
    return found;
}

bool LogitStrips::is_likely(size_t row) const {
    return likeliest_[row] > 0 && likeliest_[row] < graph_->strips.ids->ne[0];
}

void LogitStrips::ask(const LoweredGraph &graph, std::span<const int32_t> likeliest, float *rows) {
    graph_ = &graph;
    likeliest_.assign(likeliest.begin(), likeliest.end());
    rows_ = rows;
    n_vocab_ = static_cast<size_t>(graph.output->ne[0]);
    n_strips_ = n_logit_strips(n_vocab_);
    const size_t n = likeliest_.size(), k = static_cast<size_t>(graph.strips.ids->ne[0]);
    const size_t value_bytes = n * k * logit_strip * sizeof(float), id_bytes = n * k * sizeof(int32_t);
    const size_t sum_bytes = n * sizeof(float), bytes = value_bytes + id_bytes + sum_bytes;
    if (bytes > transfer_bytes_) {
        transfer_.reset();
        transfer_bytes_ = 0;
        transfer_.reset(new_transfer_buffer(backend_, bytes));
        transfer_bytes_ = bytes;
    }
    auto *base = static_cast<uint8_t *>(ggml_backend_buffer_get_base(transfer_.get()));
    auto get = [&](const ggml_tensor *from, size_t offset, size_t size) {
        ggml_backend_tensor_get_async(backend_.handle(), from, base + offset, 0, size);
        return base + offset;
    };
    values_ = reinterpret_cast<const float *>(get(graph.strips.values, 0, value_bytes));
    ids_ = reinterpret_cast<const int32_t *>(get(graph.strips.ids, value_bytes, id_bytes));
    sums_ = reinterpret_cast<const float *>(get(graph.strips.sums, value_bytes + id_bytes, sum_bytes));
    for (size_t i = 0; i < n; ++i)
        if (!is_likely(i)) fetch(i);
}

void LogitStrips::fetch(size_t i) {
    const size_t bytes = n_vocab_ * sizeof(float);
    ggml_backend_tensor_get_async(backend_.handle(), graph_->output, row(i), i * bytes, bytes);
}

void LogitStrips::clear(size_t i) {
    float *maxima = maxima_.data() + i * n_strips_;
    for (int32_t strip : written_[i]) {
        const bool all = strip == all_of_row;
        const size_t first = all ? 0 : static_cast<size_t>(strip), n = all ? n_strips_ : 1;
        std::fill_n(row(i) + first * logit_strip, n * logit_strip, -std::numeric_limits<float>::infinity());
        std::fill_n(maxima + first, n, -std::numeric_limits<float>::infinity());
    }
    written_[i].clear();
}

// No logit outside the strips exceeds the least of their maxima.  So the k likeliest are known if k strips have larger
// maxima.
bool LogitStrips::put(size_t i) {
    const auto k = static_cast<size_t>(graph_->strips.ids->ne[0]);
    if (!(sums_[i] <= std::numeric_limits<float>::max())) return false; // a logit is NaN or infinite
    const float *values = values_ + i * k * logit_strip;
    std::vector<float> found(k);
    for (size_t j = 0; j < k; ++j)
        found[j] = *std::max_element(values + j * logit_strip, values + (j + 1) * logit_strip);
    const float least = *std::ranges::min_element(found); // if -inf, so are all logits outside
    const auto n_above = std::ranges::count_if(found, [least](float maximum) { return maximum > least; });
    if (std::isfinite(least) && n_above < likeliest_[i]) return false;
    clear(i);
    for (size_t j = 0; j < k; ++j) {
        const int32_t strip = ids_[i * k + j];
        const auto at = static_cast<size_t>(strip);
        std::copy_n(values + j * logit_strip, logit_strip, row(i) + at * logit_strip);
        maxima_[i * n_strips_ + at] = found[j];
        written_[i].push_back(strip);
    }
    return true;
}

void LogitStrips::finish() {
    const size_t n = likeliest_.size();
    maxima_.resize(std::max(maxima_.size(), n * n_strips_));
    if (written_.size() < n) written_.resize(n, std::vector<int32_t>{all_of_row});
    bool fetches = false;
    for (size_t i = 0; i < n; ++i) {
        const bool likely = is_likely(i);
        if (likely && put(i)) continue;
        if (likely) fetch(i);
        fetches |= likely;
        written_[i] = {all_of_row};
        maxima_[i * n_strips_] = std::numeric_limits<float>::quiet_NaN(); // unknown
    }
    if (fetches) ggml_backend_synchronize(backend_.handle());
}

} // namespace quire
