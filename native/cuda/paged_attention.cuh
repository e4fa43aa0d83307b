// Attention of decoding rows with a paged cache, for CUDA.  Tests also run these kernels on the CPU
// (tests/native/cuda_emulator.h), so they use only what the emulator has: shuffles, barriers, shared memory and vector
// loads.
//
// A row's tokens are cut into splits whose size depends on the row alone.  A block of four warps takes a split of one
// row for up to four heads that share K and V, and each warp 16 of every 64 tokens.  A lane has 8 of a head's
// dimensions.  It reads 16 bytes of K or V at a time, and everything a tile needs before computing.  A second kernel
// adds up the splits in their order, so the bits of a row's result do not depend on other rows.
#pragma once

#include "cuda/lanes.cuh"

namespace quire_cuda {

constexpr int block_tokens = 32, tile_tokens = 64, n_warps = 4, warp_tokens = tile_tokens / n_warps, most_splits = 64;
constexpr float no_score = -1e30F; // finite, so that differences are not NaN

struct PagedArgs {
    const float *q; // rows of n_head * D numbers
    const char *k, *v; // pools
    size_t k_token_bytes, v_token_bytes; // bytes between tokens
    const int *tables, *spans;
    const float *sinks; // may be null
    float *out, *sums; // sums: [n_rows][n_head][n_splits][D]
    float2 *stats; // [n_rows][n_head][n_splits]: the largest score, and the sum of weights
    int n_blocks, n_head, n_kv_head, n_splits; // n_blocks: length of a row's table
    float scale, soft_cap;
};

// The tokens per split, so that there are at most `most_splits`.
__host__ __device__ inline int split_tokens(int n_tokens) {
    int n = tile_tokens;
    while (n * most_splits < n_tokens) n *= 2;
    return n;
}

// Grid: splits, then kv heads times parts of the query heads that share one, then rows.
template <class T, int D, int H> __global__ void __launch_bounds__(32 * n_warps) attend_splits(PagedArgs a) {
    constexpr int token_lanes = D / 8, together = 32 / token_lanes, n_loads = warp_tokens / together;
    const int row = blockIdx.z, split = blockIdx.x;
    const int first = a.spans[2 * row], n = a.spans[2 * row + 1];
    const int size = split_tokens(n), begin = split * size;
    if (begin >= n) return;
    const int end = min(n, begin + size);
    const int shared_by = a.n_head / a.n_kv_head, n_parts = (shared_by + H - 1) / H;
    const int kv_head = blockIdx.y / n_parts, part = blockIdx.y % n_parts * H;
    const int head = kv_head * shared_by + part, n_heads = min(H, shared_by - part);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int dim = lane % token_lanes * 8, of_load = lane / token_lanes;
    const int *table = a.tables + static_cast<size_t>(row) * a.n_blocks;
    const char *k = a.k + (static_cast<size_t>(kv_head) * D + dim) * 2, *v = a.v + (static_cast<size_t>(kv_head) * D + dim) * 2;

    float q[H][8];
#pragma unroll
    for (int h = 0; h < H; ++h) {
        const float *from = a.q + (static_cast<size_t>(row) * a.n_head + head + min(h, n_heads - 1)) * D + dim;
#pragma unroll
        for (int i = 0; i < 8; ++i) q[h][i] = from[i] * a.scale;
    }
    float mixed[H][8] = {}, largest[H], weight[H];
#pragma unroll
    for (int h = 0; h < H; ++h) {
        largest[h] = no_score;
        weight[h] = 0;
    }
    for (int tile = begin; tile < end; tile += tile_tokens) {
        const int own = tile + warp * warp_tokens + of_load;
        uint4 keys[n_loads], values[n_loads];
#pragma unroll
        for (int i = 0; i < n_loads; ++i) {
            keys[i] = values[i] = uint4{0, 0, 0, 0};
            const int token = own + i * together;
            if (token >= end) continue;
            const int at = first + token;
            const size_t slot = static_cast<size_t>(table[at / block_tokens]) * block_tokens + at % block_tokens;
            keys[i] = load_once(k + slot * a.k_token_bytes);
            values[i] = load_once(v + slot * a.v_token_bytes);
        }
        float scores[n_loads][H];
#pragma unroll
        for (int i = 0; i < n_loads; ++i) {
            float key[8];
            unpack<T>(keys[i], key);
#pragma unroll
            for (int h = 0; h < H; ++h) {
                float sum = 0;
#pragma unroll
                for (int j = 0; j < 8; ++j) sum += q[h][j] * key[j];
                sum = lanes_sum(sum, 1, token_lanes);
                if (a.soft_cap > 0) sum = a.soft_cap * tanhf(sum / a.soft_cap);
                scores[i][h] = own + i * together < end ? sum : no_score;
            }
        }
#pragma unroll
        for (int h = 0; h < H; ++h) {
            float top = largest[h];
#pragma unroll
            for (int i = 0; i < n_loads; ++i) top = fmaxf(top, scores[i][h]);
            top = lanes_max(top, token_lanes, 32);
            const float shrink = expf(largest[h] - top);
            largest[h] = top;
            weight[h] *= shrink;
#pragma unroll
            for (int j = 0; j < 8; ++j) mixed[h][j] *= shrink;
#pragma unroll
            for (int i = 0; i < n_loads; ++i) {
                scores[i][h] = scores[i][h] > no_score ? expf(scores[i][h] - top) : 0.0F;
                weight[h] += scores[i][h];
            }
        }
#pragma unroll
        for (int i = 0; i < n_loads; ++i) {
            float value[8];
            unpack<T>(values[i], value);
#pragma unroll
            for (int h = 0; h < H; ++h)
#pragma unroll
                for (int j = 0; j < 8; ++j) mixed[h][j] += scores[i][h] * value[j];
        }
    }
    // The results of each warp.
    __shared__ float shared_mixed[n_warps][H][D], shared_largest[n_warps][H], shared_weight[n_warps][H];
#pragma unroll
    for (int h = 0; h < H; ++h) {
        const float sum = lanes_sum(weight[h], token_lanes, 32);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float total = lanes_sum(mixed[h][j], token_lanes, 32);
            if (of_load == 0) shared_mixed[warp][h][dim + j] = total;
        }
        if (lane == 0) {
            shared_largest[warp][h] = largest[h];
            shared_weight[warp][h] = sum;
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < n_heads * D; at += 32 * n_warps) {
        const int h = at / D, d = at % D;
        float top = no_score, sum = 0, total = 0;
        for (int w = 0; w < n_warps; ++w) top = fmaxf(top, shared_largest[w][h]);
        for (int w = 0; w < n_warps; ++w) {
            const float share = expf(shared_largest[w][h] - top);
            sum += share * shared_weight[w][h];
            total += share * shared_mixed[w][h][d];
        }
        const size_t place = (static_cast<size_t>(row) * a.n_head + head + h) * a.n_splits + split;
        a.sums[place * D + d] = total;
        if (d == 0) a.stats[place] = float2{top, sum};
    }
}

// Grid: heads, rows; D threads.
template <int D> __global__ void __launch_bounds__(D) add_splits(PagedArgs a) {
    const int head = blockIdx.x, row = blockIdx.y, d = threadIdx.x;
    const int n = a.spans[2 * row + 1], size = split_tokens(n), n_splits = (n + size - 1) / size;
    const size_t first = (static_cast<size_t>(row) * a.n_head + head) * a.n_splits;
    float top = a.sinks == nullptr ? no_score : a.sinks[head];
    for (int i = 0; i < n_splits; ++i) top = fmaxf(top, a.stats[first + i].x);
    float weight = a.sinks == nullptr ? 0.0F : expf(a.sinks[head] - top), total = 0;
    for (int i = 0; i < n_splits; ++i) {
        const float share = expf(a.stats[first + i].x - top);
        weight += share * a.stats[first + i].y;
        total += share * a.sums[(first + i) * D + d];
    }
    a.out[(static_cast<size_t>(row) * a.n_head + head) * D + d] = n > 0 ? total / weight : 0.0F;
}

} // namespace quire_cuda
