#include "graph/operations/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace quire {
namespace {

template <class T> T *at(const ggml_tensor *x, int64_t i0, int64_t i1 = 0, int64_t i2 = 0) {
    char *place = static_cast<char *>(x->data) + static_cast<size_t>(i0) * x->nb[0] + static_cast<size_t>(i1) * x->nb[1] +
                  static_cast<size_t>(i2) * x->nb[2];
    return reinterpret_cast<T *>(place);
}

// Numbers of a slot's row, from the first of a head on.
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

// For devices that compute as the CPU does, and so not fast.
void compute(ggml_tensor *out, int thread, int n_threads, void *) {
    PagedAttention params;
    get_params(out, params);
    const ggml_tensor *q = out->src[0], *k = out->src[1], *v = out->src[2], *sinks = out->src[5];
    const int64_t head_dim = q->ne[0], n_head = q->ne[1], shared_by = n_head / (k->ne[0] / head_dim);
    std::vector<float> row(static_cast<size_t>(head_dim)), scores;
    for (int64_t i = thread; i < n_head * q->ne[2]; i += n_threads) {
        const int64_t head = i % n_head, token = i / n_head, of_kv = head / shared_by * head_dim;
        const int32_t *span = at<int32_t>(out->src[4], 0, token), *table = at<int32_t>(out->src[3], 0, token);
        const float *query = at<float>(q, 0, head, token);
        float *sum = at<float>(out, 0, head, token);
        auto slot = [&](int32_t t) { return int64_t{table[t / paged_block_tokens]} * paged_block_tokens + t % paged_block_tokens; };
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

} // namespace

ggml_tensor *paged_attention_node(ggml_context *context, ggml_tensor *q, ggml_tensor *k, ggml_tensor *v,
                                  ggml_tensor *tables, ggml_tensor *spans, ggml_tensor *sinks,
                                  const PagedAttention &params) {
    ggml_tensor *sources[] = {q, k, v, tables, spans, sinks};
    ggml_tensor *node = ggml_custom_4d(context, GGML_TYPE_F32, q->ne[0], q->ne[1], q->ne[2], 1, sources,
                                       sinks == nullptr ? paged_sources : paged_sources + 1, compute, GGML_N_TASKS_MAX, nullptr);
    set_params(node, params);
    return node;
}

} // namespace quire
