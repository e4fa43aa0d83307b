#include "graph/stock/own_nodes.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "core/environment.h"

namespace quire {
namespace {

template <class T> T *at(const ggml_tensor *x, int64_t i0, int64_t i1 = 0, int64_t i2 = 0) {
    char *place = static_cast<char *>(x->data) + static_cast<size_t>(i0) * x->nb[0] +
                  static_cast<size_t>(i1) * x->nb[1] + static_cast<size_t>(i2) * x->nb[2];
    return reinterpret_cast<T *>(place);
}

// The values of a slot's row, from a head's first value on.
void read_row(const ggml_tensor *pool, int64_t slot, int64_t first, std::vector<float> &out) {
    const void *from = at<const void *>(pool, first, slot);
    const auto n = static_cast<int64_t>(out.size());
    if (pool->type == GGML_TYPE_F32)
        std::copy_n(static_cast<const float *>(from), n, out.data());
    else if (pool->type == GGML_TYPE_BF16)
        ggml_bf16_to_fp32_row(static_cast<const ggml_bf16_t *>(from), out.data(), n);
    else
        ggml_fp16_to_fp32_row(static_cast<const ggml_fp16_t *>(from), out.data(), n);
}

// Reference implementations, for devices that compute like the CPU; not fast.
// `stream_rows`: rows that share a table.
template <class Params>
void compute_by_tables(ggml_tensor *out, const Params &params, int64_t stream_rows, int thread, int n_threads) {
    const ggml_tensor *q = out->src[0], *k = out->src[1], *v = out->src[2], *sinks = out->src[5];
    const int64_t head_dim = q->ne[0], n_head = q->ne[1], shared_by = n_head / (k->ne[0] / head_dim);
    std::vector<float> row(static_cast<size_t>(head_dim)), scores;
    for (int64_t i = thread; i < n_head * q->ne[2]; i += n_threads) {
        const int64_t head = i % n_head, token = i / n_head, of_kv = head / shared_by * head_dim;
        const int32_t *span = at<int32_t>(out->src[4], 0, token),
                      *table = at<int32_t>(out->src[3], 0, token / stream_rows);
        const float *query = at<float>(q, 0, head, token);
        float *sum = at<float>(out, 0, head, token);
        auto slot = [&](int32_t t) {
            return int64_t{table[t / paged_block_tokens]} * paged_block_tokens + t % paged_block_tokens;
        };
        std::fill_n(sum, head_dim, 0.0F);
        if (span[1] == 0) continue;
        scores.clear();
        float top = sinks == nullptr ? -INFINITY : *at<float>(sinks, head);
        for (int32_t t = span[0]; t < span[0] + span[1]; ++t) {
            read_row(k, slot(t), of_kv, row);
            float score = 0;
            for (int64_t d = 0; d < head_dim; ++d) score += query[d] * row[static_cast<size_t>(d)];
            score *= params.scale;
            if (params.soft_cap > 0) score = params.soft_cap * std::tanh(score / params.soft_cap);
            scores.push_back(score);
            top = std::max(top, score);
        }
        float weight = sinks == nullptr ? 0.0F : std::exp(*at<float>(sinks, head) - top);
        for (int32_t t = 0; t < span[1]; ++t) {
            const float share = std::exp(scores[static_cast<size_t>(t)] - top);
            weight += share;
            read_row(v, slot(span[0] + t), of_kv, row);
            for (int64_t d = 0; d < head_dim; ++d) sum[d] += share * row[static_cast<size_t>(d)];
        }
        for (int64_t d = 0; d < head_dim; ++d) sum[d] /= weight;
    }
}

void compute_attention(ggml_tensor *out, int thread, int n_threads, void *) {
    PagedAttention params;
    get_params(out, params);
    compute_by_tables(out, params, 1, thread, n_threads);
}

void compute_prompt(ggml_tensor *out, int thread, int n_threads, void *) {
    PromptAttention params;
    get_params(out, params);
    compute_by_tables(out, params, params.stream_rows, thread, n_threads);
}

void write_row(const ggml_tensor *pool, int64_t slot, int64_t first, const float *from, int64_t n) {
    void *to = at<void *>(pool, first, slot);
    if (pool->type == GGML_TYPE_F32)
        std::copy_n(from, n, static_cast<float *>(to));
    else if (pool->type == GGML_TYPE_BF16)
        ggml_fp32_to_bf16_row(from, static_cast<ggml_bf16_t *>(to), n);
    else
        ggml_fp32_to_fp16_row(from, static_cast<ggml_fp16_t *>(to), n);
}

// The norm of a row, with its weight if there is one.
void norm_row(float *x, int64_t n, const ggml_tensor *weight, float eps) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += double{x[i]} * x[i];
    const auto scale = static_cast<float>(1 / std::sqrt(squares / static_cast<double>(n) + eps));
    for (int64_t i = 0; i < n; ++i) x[i] *= scale * (weight == nullptr ? 1.0F : *at<float>(weight, i));
}

struct HeadNorm {
    bool is_wanted;
    const ggml_tensor *weight; // may be null
};

// A head, normed and rotated.
void turn_head(const CacheHeads &params, HeadNorm norm, const ggml_tensor *factors, int32_t position, const float *x,
               std::vector<float> &out) {
    const auto n = static_cast<int64_t>(out.size());
    std::copy_n(x, n, out.data());
    if (norm.is_wanted) norm_row(out.data(), n, norm.weight, params.eps);
    for (int32_t pair = 0; pair < params.n_dims / 2; ++pair) {
        const int32_t first = params.halves != 0 ? pair : 2 * pair,
                      second = params.halves != 0 ? pair + params.n_dims / 2 : 2 * pair + 1;
        const double frequency = std::pow(double{params.freq_base}, -2.0 * pair / params.n_dims) /
                                 (factors == nullptr ? 1.0 : *at<float>(factors, pair));
        const float angle = static_cast<float>(position) * static_cast<float>(frequency) * params.freq_scale;
        const float cosine = std::cos(angle) * params.magnitude, sine = std::sin(angle) * params.magnitude;
        float &left = out[static_cast<size_t>(first)], &right = out[static_cast<size_t>(second)];
        const float turned = left * cosine - right * sine;
        right = left * sine + right * cosine;
        left = turned;
    }
}

void compute_heads(ggml_tensor *out, int thread, int n_threads, void *) {
    CacheHeads params;
    get_params(out, params);
    const ggml_tensor *q = out->src[0], *k = out->src[1], *v = out->src[2], *factors = out->src[9];
    const HeadNorm q_norm{params.norms_q != 0, out->src[7]}, k_norm{params.norms_k != 0, out->src[8]};
    const int64_t head_dim = q->ne[0];
    std::vector<float> head(static_cast<size_t>(head_dim));
    for (int64_t row = thread; row < q->ne[2]; row += n_threads) {
        const int64_t slot = *at<int64_t>(out->src[5], row);
        const int32_t position = *at<int32_t>(out->src[6], row);
        for (int64_t h = 0; h < q->ne[1]; ++h) {
            turn_head(params, q_norm, factors, position, at<float>(q, 0, h, row), head);
            std::copy(head.begin(), head.end(), at<float>(out, 0, h, row));
        }
        for (int64_t h = 0; h < k->ne[1]; ++h) {
            turn_head(params, k_norm, factors, position, at<float>(k, 0, h, row), head);
            write_row(out->src[3], slot, h * head_dim, head.data(), head_dim);
            write_row(out->src[4], slot, h * head_dim, at<float>(v, 0, h, row), head_dim);
        }
    }
}

float activated(float x, RowProduct::Gate gate) {
    if (gate == RowProduct::silu) return x / (1 + std::exp(-x));
    return 0.5F * x * (1 + std::tanh(0.79788456F * x * (1 + 0.044715F * x * x)));
}

void compute_product(ggml_tensor *out, int thread, int n_threads, void *) {
    RowProduct params;
    get_params(out, params);
    const ggml_tensor *matrix = out->src[0], *norm = out->src[2], *added = out->src[3], *second = out->src[4];
    const int64_t n = matrix->ne[0];
    std::vector<float> x(static_cast<size_t>(n)), weights(static_cast<size_t>(n));
    std::copy_n(at<float>(out->src[1], 0), n, x.data());
    if (params.is_normed != 0) norm_row(x.data(), n, norm, params.eps);
    auto product = [&](const ggml_tensor *of, int64_t row) {
        ggml_get_type_traits(of->type)->to_float(at<void *>(of, 0, row), weights.data(), n);
        float sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += weights[static_cast<size_t>(i)] * x[static_cast<size_t>(i)];
        return sum;
    };
    for (int64_t row = thread; row < matrix->ne[1]; row += n_threads) {
        float made = product(matrix, row);
        if (second != nullptr) made = activated(made, params.gate) * product(second, row);
        *at<float>(out, row) = made + (added == nullptr ? 0.0F : *at<float>(added, row));
    }
}

void compute_batch(ggml_tensor *out, int thread, int n_threads, void *) {
    BatchProduct params;
    get_params(out, params);
    const ggml_tensor *x = out->src[1], *norm = out->src[2], *added = out->src[3];
    const int64_t n = params.n_in, n_rows = out->ne[1];
    std::vector<float> rows(static_cast<size_t>(n * n_rows)), weights(static_cast<size_t>(n));
    for (int64_t row = 0; row < n_rows; ++row) {
        std::copy_n(at<float>(x, 0, row), n, rows.data() + row * n);
        if (params.is_normed != 0) norm_row(rows.data() + row * n, n, norm, params.eps);
    }
    for (int64_t column = thread; column < params.n_out; column += n_threads) {
        read_arranged_row(params.type, out->src[0]->data, n, params.n_out, column, weights.data());
        for (int64_t row = 0; row < n_rows; ++row) {
            float sum = 0;
            for (int64_t i = 0; i < n; ++i)
                sum += weights[static_cast<size_t>(i)] * rows[static_cast<size_t>(row * n + i)];
            *at<float>(out, column, row) = sum + (added == nullptr ? 0.0F : *at<float>(added, column, row));
        }
    }
}

} // namespace

bool has_own_node(ggml_backend *device, const ggml_tensor *node) {
    if (is_switched_off("QUIRE_DEVICE_KERNELS") || !ggml_backend_supports_op(device, node)) return false;
    ggml_tensor unknown = *node; // ggml's RPC backend claims to support every node
    unknown.op_params[first_param] = 0;
    return !ggml_backend_supports_op(device, &unknown);
}

namespace {

template <class Params>
ggml_tensor *attention_node(ggml_context *context, const PagedSources &s, const Params &params,
                            ggml_custom_op_t compute) {
    ggml_tensor *sources[] = {s.q, s.k, s.v, s.tables, s.spans, s.sinks};
    ggml_tensor *node = ggml_custom_4d(context, GGML_TYPE_F32, s.q->ne[0], s.q->ne[1], s.q->ne[2], 1, sources,
                                       static_cast<int>(std::size(sources)), compute, GGML_N_TASKS_MAX, nullptr);
    set_params(node, params);
    return node;
}

} // namespace

ggml_tensor *paged_attention_node(ggml_context *context, const PagedSources &sources, const PagedAttention &params) {
    return attention_node(context, sources, params, compute_attention);
}

ggml_tensor *prompt_attention_node(ggml_context *context, const PagedSources &sources, const PromptAttention &params) {
    return attention_node(context, sources, params, compute_prompt);
}

ggml_tensor *cache_heads_node(ggml_context *context, const HeadSources &s, const CacheHeads &params) {
    ggml_tensor *node = ggml_custom_4d(context, GGML_TYPE_F32, s.q->ne[0], s.q->ne[1], s.q->ne[2], 1, nullptr, 0,
                                       compute_heads, GGML_N_TASKS_MAX, nullptr);
    ggml_tensor *sources[] = {s.q,     s.k,         s.v,        s.k_pool,   s.v_pool,
                              s.slots, s.positions, s.q_weight, s.k_weight, s.factors};
    static_assert(std::size(sources) == GGML_MAX_SRC);
    std::copy(std::begin(sources), std::end(sources), node->src);
    set_params(node, params);
    return node;
}

ggml_tensor *row_product_node(ggml_context *context, ggml_tensor *matrix, ggml_tensor *x, ggml_tensor *norm,
                              const RowProduct &params) {
    ggml_tensor *sources[] = {matrix, x, norm};
    ggml_tensor *node = ggml_custom_4d(context, GGML_TYPE_F32, matrix->ne[1], 1, 1, 1, sources, 3, compute_product,
                                       GGML_N_TASKS_MAX, nullptr);
    set_params(node, params);
    return node;
}

ggml_tensor *batch_product_node(ggml_context *context, ggml_tensor *matrix, ggml_tensor *x, ggml_tensor *norm,
                                const BatchProduct &params) {
    ggml_tensor *sources[] = {matrix, x, norm};
    ggml_tensor *node = ggml_custom_4d(context, GGML_TYPE_F32, params.n_out, ggml_nrows(x), 1, 1, sources, 3,
                                       compute_batch, GGML_N_TASKS_MAX, nullptr);
    set_params(node, params);
    return node;
}

} // namespace quire
