// CUDA's functions of intrinsics.cuh that kernels without tensor cores use, for HIP.  Only ci/hip_kernels includes this: the
// kernels compile, but were never run on such a card, so modules leave them out.
#pragma once

#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

#define DYNAMIC_SHARED_MEMORY(name) HIP_DYNAMIC_SHARED(char, name)
// Lanes of a warp of 32, also where hardware has 64.
#define __shfl_xor_sync(lanes, x, bits) __shfl_xor(x, bits, 32)

__device__ inline void __syncwarp() { __builtin_amdgcn_wave_barrier(); }
__device__ inline int __dp4a(int a, int b, int c) {
    for (int shift = 0; shift < 32; shift += 8)
        c += static_cast<signed char>(a >> shift) * static_cast<signed char>(b >> shift);
    return c;
}

namespace quire_cuda {

using half = __half;

__device__ inline float2 halves_to_floats(unsigned word) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&word));
}
__device__ inline uint4 load_once(const char *from) { return *reinterpret_cast<const uint4 *>(from); }
__device__ inline unsigned short half_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
__device__ inline unsigned float_bits(float x) { return __float_as_uint(x); }
__device__ inline unsigned short bf16_bits(float x) { // to the nearest, halves to the even one
    const unsigned bits = __float_as_uint(x);
    return static_cast<unsigned short>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

} // namespace quire_cuda
