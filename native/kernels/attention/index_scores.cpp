#include "kernels/attention/index_scores.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <vector>

#include "core/q8_layout.h"

namespace quire {
namespace {

constexpr int block_tokens = kv_block_tokens;

void read_codes(const int8_t *codes, int head_dim, float *keys) {
    float scales[block_tokens];
    std::memcpy(scales, codes + q8_codes_bytes(head_dim, block_tokens), sizeof scales);
    for (int d = 0; d < head_dim; ++d) {
        const int8_t *group = codes + d / q8_group * q8_group * block_tokens + d % q8_group;
        for (int t = 0; t < block_tokens; ++t)
            keys[d * block_tokens + t] = static_cast<float>(group[t * q8_group]) * scales[t];
    }
}

} // namespace

float from_f16(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16, rest = bits & 0x7fffU;
    // Exponents are counted from 15, here from 127.  This holds for subnormal numbers too, as the product is exact.
    const float scaled = std::bit_cast<float>(rest << 13) * 0x1p112F;
    const float value = rest >= 0x7c00U ? std::bit_cast<float>(0x7f800000U | (rest & 0x3ffU) << 13) : scaled;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

void read_block_keys(KvType type, const void *block, int head_dim, float *keys) {
    const int n = head_dim * block_tokens;
    const auto *halves = static_cast<const uint16_t *>(block);
    switch (type) {
    case KvType::f32: std::memcpy(keys, block, static_cast<size_t>(n) * sizeof(float)); return;
    case KvType::f16:
        for (int i = 0; i < n; ++i) keys[i] = from_f16(halves[i]);
        return;
    case KvType::bf16:
        for (int i = 0; i < n; ++i) keys[i] = std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
        return;
    default: read_codes(static_cast<const int8_t *>(block), head_dim, keys);
    }
}

void score_block(const float *q, const float *weights, int n_head, int head_dim, const float *keys, float *scores) {
    std::fill_n(scores, block_tokens, 0.0F);
    for (int head = 0; head < n_head; ++head, q += head_dim) {
        float sums[block_tokens] = {};
        for (int d = 0; d < head_dim; ++d) {
            const float *row = keys + d * block_tokens;
            for (int t = 0; t < block_tokens; ++t) sums[t] += q[d] * row[t];
        }
        for (int t = 0; t < block_tokens; ++t) scores[t] += weights[head] * (sums[t] > 0.0F ? sums[t] : 0.0F);
    }
}

void pick_largest(const float *scores, int n, int n_picked, float *mask) {
    std::fill_n(mask, n, n <= n_picked ? 0.0F : not_picked);
    if (n <= n_picked) return;
    static thread_local std::vector<float> sorted;
    sorted.assign(scores, scores + n);
    std::nth_element(sorted.begin(), sorted.begin() + n_picked - 1, sorted.end(), std::greater<>());
    const float least = sorted[static_cast<size_t>(n_picked - 1)];
    auto n_equal = n_picked - static_cast<int>(std::count_if(scores, scores + n, [&](float s) { return s > least; }));
    for (int t = 0; t < n; ++t) {
        const bool is_equal = scores[t] == least && n_equal > 0;
        if (is_equal) --n_equal;
        if (is_equal || scores[t] > least) mask[t] = 0.0F;
    }
}

} // namespace quire
