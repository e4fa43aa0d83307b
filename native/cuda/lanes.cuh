// Reductions over the lanes of a warp, and numbers of 16 bits.
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

// The numbers in 16 bytes.
template <class T> __device__ inline void unpack(uint4 bytes, float (&out)[8]);
template <> __device__ inline void unpack<half>(uint4 bytes, float (&out)[8]) {
    const unsigned words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = halves_to_floats(words[i]);
        out[2 * i] = pair.x;
        out[2 * i + 1] = pair.y;
    }
}
struct bf16_t {};
template <> __device__ inline void unpack<bf16_t>(uint4 bytes, float (&out)[8]) {
    const unsigned words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000U);
    }
}

} // namespace quire_cuda
