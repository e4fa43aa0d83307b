// CUDA functions that the kernels of native/cuda use.  tests/native/cuda_emulator.h has the same functions for the CPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define DYNAMIC_SHARED_MEMORY(name) extern __shared__ __align__(16) char name[]

namespace quire_cuda {

__device__ inline float2 halves_to_floats(unsigned word) {
    return __half22float2(*reinterpret_cast<const half2 *>(&word));
}
__device__ inline uint4 load_once(const char *from) { return __ldg(reinterpret_cast<const uint4 *>(from)); }
__device__ inline unsigned short half_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }
__device__ inline unsigned short bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
__device__ inline unsigned float_bits(float x) { return __float_as_uint(x); }
__device__ inline unsigned byte_perm(unsigned low, unsigned high, unsigned digits) {
    return __byte_perm(low, high, digits);
}

__device__ inline half2 as_pair(unsigned word) { return *reinterpret_cast<const half2 *>(&word); }
__device__ inline unsigned as_word(half2 pair) { return *reinterpret_cast<const unsigned *>(&pair); }
__device__ inline unsigned pair_subtract(unsigned a, unsigned b) { return as_word(__hsub2(as_pair(a), as_pair(b))); }
__device__ inline unsigned pair_multiply(unsigned a, unsigned b) { return as_word(__hmul2(as_pair(a), as_pair(b))); }
__device__ inline unsigned pair_fma(unsigned a, unsigned b, unsigned c) {
    return as_word(__hfma2(as_pair(a), as_pair(b), as_pair(c)));
}

// 16 bytes from global to shared memory.  Before Ampere, the copy is made at once.
__device__ inline void copy_async(char *to, const char *from) {
#if __CUDA_ARCH__ >= 800
    const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
#else
    *reinterpret_cast<uint4 *>(to) = __ldg(reinterpret_cast<const uint4 *>(from));
#endif
}
__device__ inline void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int may_be_left> __device__ inline void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(may_be_left) : "memory");
#endif
}

// Four matrices of 8 x 8 numbers of 16 bits from shared memory, transposed, as `mma`'s second operand.  Lane l gives the
// address of row l % 8 of matrix l / 8.
__device__ inline void load_transposed(const char *row, unsigned (&out)[4]) {
#if __CUDA_ARCH__ >= 750
    const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared)
                 : "memory");
#else
    __trap();
#endif
}

// Adds the product of 16 x 16 and 16 x 8 numbers to the sums.  BF16 needs Ampere; before it, f16 takes two steps.
template <bool is_bf16>
__device__ inline void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
    if (is_bf16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif __CUDA_ARCH__ >= 750
    if (is_bf16) __trap();
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[2]), "r"(a[3]), "r"(b1));
#else
    __trap();
#endif
}

} // namespace quire_cuda
