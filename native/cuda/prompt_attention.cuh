// The kernel for cuda/prompt_attention.h: flash attention (Dao 2023) of many rows with a paged cache, on tensor cores.
//
// A thread block has 64 rows of a stream and one head; each of its four warps has 16 rows.  Blocks of 32 cached tokens
// pass through shared memory, the next one being copied meanwhile.  A row's tokens are summed block by block in their
// order, and blocks that it does not see change no bit, so results do not depend on other rows or on how a prompt is cut.
// Tests run this source on the CPU (tests/native/cuda_emulator.h).
#pragma once

#include "cuda/lanes.cuh"
#include "cuda/paged_attention.cuh"

namespace quire_cuda {

constexpr int prompt_warps = 4, prompt_rows = 16 * prompt_warps, prompt_threads = 32 * prompt_warps;

struct PromptArgs {
    const float *q; // rows of n_head * D numbers
    const char *k, *v; // pools
    size_t k_token_bytes, v_token_bytes; // bytes between tokens
    const int *tables, *spans;
    const float *sinks; // may be null
    float *out;
    int n_blocks, n_head, n_kv_head, stream_rows; // n_blocks: length of a table
    float scale, soft_cap;
};

// Rows in shared memory are farther apart than they are long, so that lanes read different banks.
template <int D> struct PromptMemory {
    static constexpr int k_row = 2 * D + 64, v_row = 2 * D + 16, v_at = block_tokens * k_row,
                         stage_bytes = v_at + block_tokens * v_row, total_bytes = 2 * stage_bytes;
};

template <class T> __device__ inline unsigned pair_bits(float low, float high);
template <> __device__ inline unsigned pair_bits<half>(float low, float high) {
    return half_bits(low) | static_cast<unsigned>(half_bits(high)) << 16;
}
template <> __device__ inline unsigned pair_bits<bf16_t>(float low, float high) {
    return bf16_bits(low) | static_cast<unsigned>(bf16_bits(high)) << 16;
}
template <class T> struct IsBf16 {
    static constexpr bool value = false;
};
template <> struct IsBf16<bf16_t> {
    static constexpr bool value = true;
};

// Grid: rows of a stream by `prompt_rows`, heads, streams; dynamic shared memory.
template <class T, int D> __global__ void __launch_bounds__(prompt_threads, 2) attend_prompt(PromptArgs a) {
    using Memory = PromptMemory<D>;
    constexpr bool is_bf16 = IsBf16<T>::value;
    constexpr int n_steps = D / 16, n_dims = D / 8, n_tokens = block_tokens / 8; // steps of products, tiles of 8
    DYNAMIC_SHARED_MEMORY(shared_blocks);
    __shared__ int spans[prompt_rows][2]; // the first token, and the one behind the last
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y, stream = blockIdx.z;
    const int first_row = blockIdx.x * prompt_rows, n_rows = min(prompt_rows, a.stream_rows - first_row);
    const size_t begin_row = static_cast<size_t>(stream) * a.stream_rows + first_row;
    for (int i = threadIdx.x; i < prompt_rows; i += prompt_threads) {
        const int first = i < n_rows ? a.spans[2 * (begin_row + i)] : 0, n = i < n_rows ? a.spans[2 * (begin_row + i) + 1] : 0;
        spans[i][0] = first;
        spans[i][1] = first + n;
    }
    __syncthreads();
    int seen_first = 1 << 30, seen_end = 0; // by any row
    for (int i = 0; i < prompt_rows; ++i)
        if (spans[i][1] > spans[i][0]) {
            seen_first = min(seen_first, spans[i][0]);
            seen_end = spans[i][1] > seen_end ? spans[i][1] : seen_end;
        }
    const int *table = a.tables + static_cast<size_t>(stream) * a.n_blocks;
    const size_t of_head = static_cast<size_t>(head / (a.n_head / a.n_kv_head)) * D * 2;
    auto fetch = [&](int block) {
        char *to = shared_blocks + (block & 1) * Memory::stage_bytes;
        const size_t slot = static_cast<size_t>(table[block]) * block_tokens;
        for (int i = threadIdx.x; i < block_tokens * n_dims; i += prompt_threads) {
            const int in_block = i / n_dims, token = block * block_tokens + in_block, part = i % n_dims * 16;
            char *k = to + in_block * Memory::k_row + part, *v = to + Memory::v_at + in_block * Memory::v_row + part;
            if (token >= seen_first && token < seen_end) {
                copy_async(k, a.k + (slot + in_block) * a.k_token_bytes + of_head + part);
                copy_async(v, a.v + (slot + in_block) * a.v_token_bytes + of_head + part);
            } else { // may hold anything, even what is not a number
                *reinterpret_cast<uint4 *>(k) = *reinterpret_cast<uint4 *>(v) = uint4{0, 0, 0, 0};
            }
        }
    };
    // A lane has rows `own` and `own` + 8 of the warp's.  As operands, columns 8 c to 8 c + 7 of each 32 belong to lanes
    // 4 r + c, so that a lane reads 16 bytes; the order of columns is the same for q and k.
    const int own = 16 * warp + lane / 4;
    unsigned q[n_steps][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = min(own + 8 * h, n_rows - 1);
        const float *from = a.q + ((begin_row + row) * a.n_head + head) * D + lane % 4 * 8;
#pragma unroll
        for (int i = 0; i < n_steps * 2; ++i) { // pairs of columns
            const float *pair = from + i / 4 * 32 + i % 4 * 2;
            q[i / 4 * 2 + i % 4 / 2][i % 2 * 2 + h] = pair_bits<T>(pair[0] * a.scale, pair[1] * a.scale);
        }
    }
    float mixed[n_dims][4] = {}, largest[2] = {no_score, no_score}, weight[2] = {0, 0};
    const int first_block = seen_end == 0 ? 0 : seen_first / block_tokens,
              end_block = (seen_end + block_tokens - 1) / block_tokens;
    if (first_block < end_block) fetch(first_block);
    commit_copies();
    for (int block = first_block; block < end_block; ++block) {
        wait_for_copies<0>();
        __syncthreads();
        if (block + 1 < end_block) fetch(block + 1);
        commit_copies();
        const char *keys = shared_blocks + (block & 1) * Memory::stage_bytes, *values = keys + Memory::v_at;
        float scores[n_tokens][4] = {};
#pragma unroll
        for (int t = 0; t < n_tokens; ++t)
#pragma unroll
            for (int i = 0; i < n_steps / 2; ++i) {
                const char *from = keys + (8 * t + lane / 4) * Memory::k_row + i * 64 + lane % 4 * 16;
                const uint4 key = *reinterpret_cast<const uint4 *>(from);
                multiply_add<is_bf16>(scores[t], q[2 * i], key.x, key.y);
                multiply_add<is_bf16>(scores[t], q[2 * i + 1], key.z, key.w);
            }
        unsigned odds[n_tokens][2]; // by row
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int first = spans[own + 8 * h][0], end = spans[own + 8 * h][1];
            float top = largest[h];
#pragma unroll
            for (int t = 0; t < n_tokens; ++t)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float &score = scores[t][2 * h + i];
                    const int token = block * block_tokens + 8 * t + lane % 4 * 2 + i;
                    if (a.soft_cap > 0) score = a.soft_cap * tanhf(score / a.soft_cap);
                    if (token < first || token >= end) score = no_score;
                    top = fmaxf(top, score);
                }
            top = lanes_max(top, 1, 4);
            const float shrink = expf(largest[h] - top);
            largest[h] = top;
            weight[h] *= shrink;
#pragma unroll
            for (int d = 0; d < n_dims; ++d)
#pragma unroll
                for (int i = 0; i < 2; ++i) mixed[d][2 * h + i] *= shrink;
#pragma unroll
            for (int t = 0; t < n_tokens; ++t) {
                float odd[2];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float score = scores[t][2 * h + i];
                    odd[i] = score > no_score ? expf(score - top) : 0.0F;
                    weight[h] += odd[i];
                }
                odds[t][h] = pair_bits<T>(odd[0], odd[1]);
            }
        }
#pragma unroll
        for (int t = 0; t < n_tokens; t += 2) {
            const unsigned of_tokens[4] = {odds[t][0], odds[t][1], odds[t + 1][0], odds[t + 1][1]};
#pragma unroll
            for (int d = 0; d < n_dims; d += 2) {
                unsigned value[4];
                load_transposed(values + (8 * t + lane % 16) * Memory::v_row + (d + lane / 16) * 16, value);
                multiply_add<is_bf16>(mixed[d], of_tokens, value[0], value[1]);
                multiply_add<is_bf16>(mixed[d + 1], of_tokens, value[2], value[3]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = own + 8 * h;
        float total = lanes_sum(weight[h], 1, 4), share = 1;
        if (a.sinks != nullptr) {
            const float top = fmaxf(largest[h], a.sinks[head]);
            share = expf(largest[h] - top);
            total = total * share + expf(a.sinks[head] - top);
        }
        if (row >= n_rows) continue;
        const float factor = spans[row][1] > spans[row][0] ? share / total : 0.0F;
        float *to = a.out + ((begin_row + row) * a.n_head + head) * D + lane % 4 * 2;
#pragma unroll
        for (int d = 0; d < n_dims; ++d) {
            to[8 * d] = mixed[d][2 * h] * factor;
            to[8 * d + 1] = mixed[d][2 * h + 1] * factor;
        }
    }
}

} // namespace quire_cuda
