#include "kernels/attention/block_choice.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/attention/index_scores.h"

namespace quire {
namespace {

float largest_score(const float *q, int dim, const float *keys) {
    float sums[kv_block_tokens] = {};
    for (int d = 0; d < dim; ++d)
        for (int t = 0; t < kv_block_tokens; ++t) sums[t] += q[d] * keys[d * kv_block_tokens + t];
    return *std::max_element(sums, sums + kv_block_tokens);
}

} // namespace

void pick_blocks(const BlockChoice &choice, const IndexKeys &keys, const int32_t *table, int32_t position,
                 const float *q, float *out) {
    static thread_local std::vector<float> block_keys, scores, mask;
    const int each = choice.block / kv_block_tokens, n = position / choice.block + 1;
    // All tokens of the blocks before the last ones have come.
    const int n_scored = n > choice.n_picked ? n - choice.n_local : 0;
    const auto stride = static_cast<size_t>(n_scored);
    block_keys.resize(static_cast<size_t>(choice.dim) * kv_block_tokens);
    scores.assign(static_cast<size_t>(choice.n_head) * stride, -std::numeric_limits<float>::infinity());
    for (int b = 0; b < n_scored * each; ++b) {
        keys.read(table[b], block_keys.data());
        for (int head = 0; head < choice.n_head; ++head) {
            float &largest = scores[static_cast<size_t>(head) * stride + static_cast<size_t>(b / each)];
            largest = std::max(largest, largest_score(q + int64_t{head} * choice.dim, choice.dim, block_keys.data()));
        }
    }
    for (int head = 0; head < choice.n_head; ++head, out += choice.n_numbers()) {
        mask.assign(static_cast<size_t>(n), 0.0F);
        if (n_scored > 0 && choice.n_picked > choice.n_local)
            pick_largest(scores.data() + static_cast<size_t>(head) * stride, n_scored, choice.n_picked - choice.n_local,
                         mask.data());
        else
            std::fill_n(mask.begin(), n_scored, not_picked);
        int n_blocks = 0;
        for (int b = 0; b <= position / kv_block_tokens; ++b)
            if (mask[static_cast<size_t>(b / each)] == 0.0F) out[++n_blocks] = static_cast<float>(b);
        out[0] = static_cast<float>((n_blocks - 1) * kv_block_tokens + position % kv_block_tokens + 1);
        std::fill_n(out + 1 + n_blocks, choice.n_numbers() - 1 - n_blocks, 0.0F);
    }
}

} // namespace quire
