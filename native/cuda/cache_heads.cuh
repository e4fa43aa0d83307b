// The kernel for cuda/cache_heads.h: norm and rotation of q and k, and writing k and v to the cache.  One warp per
// head.
#pragma once

#include "cuda/lanes.cuh"

namespace quire_cuda {

constexpr int heads_together = 4, most_head_dim = 256;

struct HeadsArgs {
    const float *q, *k, *v;
    char *k_pool, *v_pool;
    const long long *slots;
    const int *positions;
    const float *q_weight, *k_weight, *factors; // each may be null
    float *out;
    long long q_row, k_row, v_row; // numbers between rows
    size_t k_token_bytes, v_token_bytes;
    int n_head, n_kv_head, head_dim, n_dims, norms_q, norms_k, halves, is_bf16;
    float eps, freq_scale, magnitude;
    double octaves; // log2 of the ratio of two pairs' frequencies: -2 / n_dims * log2(freq_base)
};

// Cosine and sine of a pair's angle.  The fast functions are exact enough only between -pi and pi, and the fast power
// of two only after splitting off the integer part.
__device__ inline float2 turned_by(const HeadsArgs &a, int pair, int position) {
    const double exponent = a.octaves * pair;
    const int whole = static_cast<int>(exponent);
    float frequency = ldexpf(exp2f(static_cast<float>(exponent - whole)), whole);
    if (a.factors != nullptr) frequency /= a.factors[pair];
    const float angle = static_cast<float>(position) * frequency * a.freq_scale;
    const float turns = rintf(angle * 0.15915494309F);
    const float rest = fmaf(-turns, -1.7484555e-7F, fmaf(-turns, 6.2831855F, angle)); // 2 pi as a sum of two floats
    return float2{cosf(rest) * a.magnitude, sinf(rest) * a.magnitude};
}

__device__ inline void store_half(const HeadsArgs &a, char *to, float x) {
    const unsigned short bits = a.is_bf16 ? bf16_bits(x) : half_bits(x);
    *reinterpret_cast<unsigned short *>(to) = bits;
}

// Grid: rows, then heads of q, k and v in groups of `heads_together`.
__global__ void __launch_bounds__(32 * heads_together) cache_heads(HeadsArgs a) {
    __shared__ float normed[heads_together][most_head_dim];
    const int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int number = blockIdx.y * heads_together + warp, n_heads = a.n_head + 2 * a.n_kv_head;
    if (number >= n_heads) return;
    const bool is_q = number < a.n_head, is_v = number >= a.n_head + a.n_kv_head;
    const int head = is_q ? number : is_v ? number - a.n_head - a.n_kv_head : number - a.n_head;
    const float *x = (is_q   ? a.q + row * a.q_row
                      : is_v ? a.v + row * a.v_row
                             : a.k + row * a.k_row) + static_cast<size_t>(head) * a.head_dim;
    const size_t slot = is_q ? 0 : static_cast<size_t>(a.slots[row]);
    if (is_v) {
        char *to = a.v_pool + slot * a.v_token_bytes + static_cast<size_t>(head) * a.head_dim * 2;
        for (int d = lane; d < a.head_dim; d += 32) store_half(a, to + d * 2, x[d]);
        return;
    }
    float scale = 1;
    if (is_q ? a.norms_q : a.norms_k) {
        float sum = 0;
        for (int d = lane; d < a.head_dim; d += 32) sum += x[d] * x[d];
        scale = 1.0F / sqrtf(lanes_sum(sum, 1, 32) / a.head_dim + a.eps);
    }
    const float *weight = is_q ? a.q_weight : a.k_weight;
    for (int d = lane; d < a.head_dim; d += 32) normed[warp][d] = x[d] * scale * (weight == nullptr ? 1.0F : weight[d]);
    __syncwarp();
    float *out = a.out + (static_cast<size_t>(row) * a.n_head + head) * a.head_dim;
    char *to = a.k_pool + slot * a.k_token_bytes + static_cast<size_t>(head) * a.head_dim * 2;
    auto give = [&](int d, float value) {
        if (is_q)
            out[d] = value;
        else
            store_half(a, to + d * 2, value);
    };
    for (int pair = lane; pair < a.n_dims / 2; pair += 32) {
        const int first = a.halves ? pair : 2 * pair, second = a.halves ? pair + a.n_dims / 2 : 2 * pair + 1;
        const float2 by = turned_by(a, pair, a.positions[row]);
        const float left = normed[warp][first], right = normed[warp][second];
        give(first, left * by.x - right * by.y);
        give(second, left * by.y + right * by.x);
    }
    for (int d = a.n_dims + lane; d < a.head_dim; d += 32) give(d, normed[warp][d]);
}

} // namespace quire_cuda
