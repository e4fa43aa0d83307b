// The kernels of native/cuda that need no tensor cores; ci/hip_kernels compiles them for AMD's cards.
#include "cuda/hip_intrinsics.cuh"
// The kernels need the functions above.
#include "cuda/cache_heads.cuh"
#include "cuda/paged_attention.cuh"
#include "cuda/row_product.cuh"

namespace quire_cuda {

#define ATTEND(T, D)                                                                                                   \
    template __global__ void attend_splits<T, D, 1>(PagedArgs);                                                        \
    template __global__ void attend_splits<T, D, 2>(PagedArgs);                                                        \
    template __global__ void attend_splits<T, D, 4>(PagedArgs)
ATTEND(half, 64);
ATTEND(half, 128);
ATTEND(half, 256);
ATTEND(bf16_t, 64);
ATTEND(bf16_t, 128);
ATTEND(bf16_t, 256);
template __global__ void add_splits<64>(PagedArgs);
template __global__ void add_splits<128>(PagedArgs);
template __global__ void add_splits<256>(PagedArgs);
template __global__ void multiply_row<Q4>(ProductArgs);
template __global__ void multiply_row<Q8>(ProductArgs);
template __global__ void multiply_row<Q4K>(ProductArgs);
template __global__ void multiply_row<Q5K>(ProductArgs);
template __global__ void multiply_row<Q6K>(ProductArgs);
template __global__ void multiply_row<Wide<half>>(ProductArgs);
template __global__ void multiply_row<Wide<bf16_t>>(ProductArgs);

} // namespace quire_cuda
