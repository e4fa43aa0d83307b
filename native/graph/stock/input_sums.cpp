#include "graph/stock/input_sums.h"

#include <optional>

namespace quire {
namespace {

// A row of float32, located by ggml's strides.
const float *row_at(const ggml_tensor *x, int64_t i1, int64_t i2) {
    return reinterpret_cast<const float *>(static_cast<const char *>(x->data) + i1 * static_cast<int64_t>(x->nb[1]) +
                                           i2 * static_cast<int64_t>(x->nb[2]));
}

// The columns of one thread.  One thread sums a column, in the order of rows, so that the number of threads does not
// matter.
struct Columns {
    int64_t begin, end;
    Columns(int64_t n, int thread, int n_threads) : begin(n * thread / n_threads), end(n * (thread + 1) / n_threads) {}
    void add(const float *x, double *squares) const {
        for (int64_t i = begin; i < end; ++i) squares[i] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
};

// The file's tensor of a weight or of its first part; empty for later parts, which read the same rows.
std::optional<std::string> name_in_file(const std::string &name) {
    const size_t part = name.find('[');
    if (part == std::string::npos) return name;
    if (name.compare(part, 3, "[0:") != 0) return std::nullopt;
    return name.substr(0, part);
}

} // namespace

void InputSums::begin_step(int n_tokens, int n_logit_rows) {
    n_tokens_ = n_tokens;
    n_logit_rows_ = n_logit_rows;
}

ggml_tensor *InputSums::watch(ggml_context *context, const Weight &weight, ggml_tensor *x, ggml_tensor *experts,
                              Lead lead) {
    const std::optional<std::string> name = name_in_file(weight.name);
    if (!name) return x;
    const Shape &shape = weight.tensor.shape();
    const int64_t n_matrix = shape.size() == 3 ? shape[0] : 1;
    auto [found, fresh] = sums_.try_emplace(*name);
    if (fresh)
        found->second = {n_matrix, x->ne[0], std::vector<double>(static_cast<size_t>(n_matrix * x->ne[0])),
                         std::vector<int64_t>(static_cast<size_t>(n_matrix))};
    Place &place = places_.emplace_back(Place{this, &found->second, lead});
    return experts == nullptr
               ? ggml_map_custom1_inplace(context, x, add_rows, GGML_N_TASKS_MAX, &place)
               : ggml_map_custom2_inplace(context, x, experts, add_rows_of_experts, GGML_N_TASKS_MAX, &place);
}

void InputSums::add_rows(ggml_tensor *, const ggml_tensor *x, int thread, int n_threads, void *at) {
    const Place &place = *static_cast<const Place *>(at);
    Sums &sums = *place.sums;
    const Columns columns(sums.n_columns, thread, n_threads);
    const int64_t n_rows = place.n_rows();
    for (int64_t i2 = 0; i2 < x->ne[2]; ++i2) {
        const int64_t matrix = i2 % sums.n_matrix;
        double *squares = sums.squares.data() + matrix * sums.n_columns;
        for (int64_t row = 0; row < n_rows; ++row) columns.add(row_at(x, row, i2), squares);
        if (thread == 0) sums.n_rows[static_cast<size_t>(matrix)] += n_rows;
    }
}

void InputSums::add_rows_of_experts(ggml_tensor *, const ggml_tensor *x, const ggml_tensor *experts, int thread,
                                    int n_threads, void *at) {
    const Place &place = *static_cast<const Place *>(at);
    Sums &sums = *place.sums;
    const Columns columns(sums.n_columns, thread, n_threads);
    for (int64_t token = 0; token < place.n_rows(); ++token) {
        const auto *chosen = reinterpret_cast<const int32_t *>(static_cast<const char *>(experts->data) +
                                                               token * static_cast<int64_t>(experts->nb[1]));
        for (int64_t i = 0; i < experts->ne[0]; ++i) {
            const int64_t expert = chosen[i];
            columns.add(row_at(x, i % x->ne[1], token), sums.squares.data() + expert * sums.n_columns);
            if (thread == 0) ++sums.n_rows[static_cast<size_t>(expert)];
        }
    }
}

} // namespace quire
