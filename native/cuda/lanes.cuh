// Reductions over the lanes of a warp.
#pragma once

namespace quire_cuda {

// The sum, or maximum, over the lanes whose indices differ only in the bits from `from` up to, but not including,
// `below`.
__device__ inline float lanes_sum(float x, int from, int below) {
    for (int bit = from; bit < below; bit *= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, bit);
    return x;
}
__device__ inline float lanes_max(float x, int from, int below) {
    for (int bit = from; bit < below; bit *= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, bit));
    return x;
}

} // namespace quire_cuda
