// The kernels for cuda/expert_layer.h: experts of some tokens, with the products of batch_product.cuh.
//
// 1. sort_choices brings the choices of all tokens into the order of experts, and cuts those of each expert into *works*
//    of as many rows as a thread block multiplies.
// 2. round_rows rounds the tokens' rows; multiply_experts multiplies those of a work, which it gathers, by some strips of
//    the expert's gate and up, and applies the unit.
// 3. The same for `down`; add_experts adds the results of a token, weighted, in the order of its choices.
//
// A launch serves all experts.  The order of all sums depends on the matrices alone, so results are batch-invariant.
// Tests run this source on the CPU (tests/native/cuda_emulator.h).
#pragma once

#include "cuda/batch_product.cuh"

namespace quire_cuda {

constexpr int sort_threads = 256, most_experts = 1024, most_choices = 8192;

struct Work {
    int expert, first, n_rows; // first: in the order of choices; n_rows 0: nothing to do
};

struct SortArgs {
    const int *experts; // {n_used, n_tokens}, tokens `step` numbers apart
    int *order; // [n_choices]: choices by expert, then by token
    Work *works;
    int n_used, n_choices, n_experts, step, rows_together, n_works;
};

// One block.
inline __global__ void __launch_bounds__(sort_threads) sort_choices(SortArgs a) {
    __shared__ short chosen[most_choices];
    __shared__ int counts[most_experts];
    for (int i = threadIdx.x; i < a.n_choices; i += sort_threads)
        chosen[i] = static_cast<short>(a.experts[static_cast<size_t>(i / a.n_used) * a.step + i % a.n_used]);
    __syncthreads();
    for (int e = threadIdx.x; e < a.n_experts; e += sort_threads) {
        int n = 0;
        for (int i = 0; i < a.n_choices; ++i) n += chosen[i] == e;
        counts[e] = n;
    }
    __syncthreads();
    auto works_of = [&](int e) { return (counts[e] + a.rows_together - 1) / a.rows_together; };
    for (int e = threadIdx.x; e < a.n_experts; e += sort_threads) {
        int first = 0, work = 0;
        for (int before = 0; before < e; ++before) {
            first += counts[before];
            work += works_of(before);
        }
        for (int done = 0; done < counts[e]; done += a.rows_together)
            a.works[work++] = Work{e, first + done, min(a.rows_together, counts[e] - done)};
        for (int i = 0, at = first; at < first + counts[e]; ++i)
            if (chosen[i] == e) a.order[at++] = i;
        if (e == a.n_experts - 1)
            for (; work < a.n_works; ++work) a.works[work] = Work{0, 0, 0};
    }
}

struct ExpertArgs {
    const char *gate, *matrix; // arranged, one after another; gate may be null
    const float *gate_bias, *bias; // [n_experts][n_out]; may be null
    const char *rounded; // row by row
    const float *row_factors;
    const float *weights; // by choice, multiplies products; may be null
    const int *order;
    const Work *works;
    float *out; // [n_choices][n_out]
    size_t expert_bytes;
    int n_out, n_strips, n_units, choices_per_row, n_works, unit;
    float alpha, limit;
};

// variant: see BatchShape.  Gated: strips 0, 2, ... of a block are the gate's, the others `up`'s.
template <bool is_gated, int variant> struct ExpertShape {
    static_assert(variant >= 0 && variant < 2);
    static constexpr int along = variant == 0 ? 4 : 2, together = is_gated ? 2 : 1,
                         across = batch_threads / 32 / along, strips = together * across;
};

__device__ inline float gated(const ExpertArgs &a, float gate, float up) {
    if (a.unit == 2) {
        gate = min(gate, a.limit);
        up = fmaxf(-a.limit, min(up, a.limit));
        return gate / (1.0F + expf(-a.alpha * gate)) * (up + 1.0F);
    }
    if (a.unit == 0) return gate / (1.0F + expf(-gate)) * up;
    return 0.5F * gate * (1.0F + tanhf(0.79788456F * gate * (1.0F + 0.044715F * gate * gate))) * up;
}

// Grid: strips by `across`, works; dynamic shared memory.
template <class W, bool is_gated, int variant, int n_tiles>
__global__ void __launch_bounds__(batch_threads, 2) multiply_experts(ExpertArgs a) {
    using Shape = ExpertShape<is_gated, variant>;
    DYNAMIC_SHARED_MEMORY(shared_units);
    __shared__ int choices[8 * n_tiles];
    const Work work = a.works[blockIdx.y];
    if (work.n_rows == 0) return;
    for (int i = threadIdx.x; i < 8 * n_tiles; i += batch_threads)
        choices[i] = a.order[work.first + min(i, work.n_rows - 1)]; // rows beyond the last are computed and left
    __syncthreads();
    const size_t at_expert = static_cast<size_t>(work.expert) * a.expert_bytes;
    const size_t row_bytes = static_cast<size_t>(a.n_units) * W::n_groups * 64;
    auto unit_at = [&](int strip, int unit) {
        const char *of = is_gated && strip % 2 == 0 ? a.gate : a.matrix;
        const int number = min(static_cast<int>(blockIdx.x) * Shape::across + strip / Shape::together, a.n_strips - 1);
        return of + at_expert + a.n_strips * (16 * 4) + (static_cast<size_t>(number) * a.n_units + unit) * W::unit_bytes;
    };
    auto rows_at = [&](int unit, int i) {
        const int row = choices[i / 32 % n_tiles * 8 + i % 32 / 4] / a.choices_per_row;
        return a.rounded + row * row_bytes + (unit * W::n_groups + i / 32 / n_tiles) * 64 + i % 4 * 16;
    };
    float sums[Shape::together][n_tiles][4] = {};
    if (!sum_strips<W, Shape, n_tiles>(shared_units, 0, a.n_units, unit_at, rows_at, sums)) return;
    const int lane = threadIdx.x % 32, side = threadIdx.x / 32 % Shape::across;
#pragma unroll
    for (int tile = 0; tile < n_tiles; ++tile)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = (blockIdx.x * Shape::across + side) * 16 + lane / 4 + i / 2 * 8;
            const int row = tile * 8 + lane % 4 * 2 + i % 2;
            if (row >= work.n_rows || column >= a.n_out) continue;
            const int choice = choices[row];
            const float scale =
                a.row_factors[choice / a.choices_per_row] * (a.weights == nullptr ? 1.0F : a.weights[choice]);
            auto made = [&](const char *matrix, const float *bias, float sum) {
                const float product = sum * reinterpret_cast<const float *>(matrix + at_expert)[column] * scale;
                return bias == nullptr ? product : product + bias[static_cast<size_t>(work.expert) * a.n_out + column];
            };
            float value = made(a.matrix, a.bias, sums[Shape::together - 1][tile][i]);
            if (is_gated) value = gated(a, made(a.gate, a.gate_bias, sums[0][tile][i]), value);
            a.out[static_cast<size_t>(choice) * a.n_out + column] = value;
        }
}

struct AddExpertsArgs {
    const float *each, *weights, *added; // the last two may be null
    float *out;
    int n_out, n_used;
};

// Grid: columns in blocks of `batch_threads`, then tokens.
inline __global__ void __launch_bounds__(batch_threads) add_experts(AddExpertsArgs a) {
    const int column = blockIdx.x * batch_threads + threadIdx.x, token = blockIdx.y;
    if (column >= a.n_out) return;
    float sum = 0;
    for (int u = 0; u < a.n_used; ++u) {
        const size_t choice = static_cast<size_t>(token) * a.n_used + u;
        sum += a.each[choice * a.n_out + column] * (a.weights == nullptr ? 1.0F : a.weights[choice]);
    }
    const size_t at = static_cast<size_t>(token) * a.n_out + column;
    a.out[at] = a.added == nullptr ? sum : sum + a.added[at];
}

} // namespace quire_cuda
