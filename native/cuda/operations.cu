// Operations of Quire's own in ggml's CUDA module: vendor/edits.py has the module ask for them.
#include "common.cuh"
#include "cuda/paged_attention.h"

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

namespace quire_cuda {

__device__ inline float2 halves_to_floats(unsigned word) {
    return __half22float2(*reinterpret_cast<const half2 *>(&word));
}
__device__ inline uint4 load_once(const char *from) { return __ldg(reinterpret_cast<const uint4 *>(from)); }

} // namespace quire_cuda

#include "cuda/paged_attention.cuh"

namespace {

using quire::PagedAttention;
using quire_cuda::PagedArgs;
static_assert(quire_cuda::block_tokens == quire::paged_block_tokens);

bool has_head_dim(int64_t n) { return n == 64 || n == 128 || n == 256; }

bool is_packed(const ggml_tensor *x) { return x->nb[0] == ggml_type_size(x->type) && ggml_is_contiguous(x); }

bool is_pool(const ggml_tensor *pool, ggml_type type, int64_t head_dim) {
    return pool->type == type && (type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) && pool->nb[0] == 2 &&
           pool->ne[0] % head_dim == 0 && pool->nb[1] % 16 == 0;
}

template <class T, int D, int H> void attend(const PagedArgs &args, int n_rows, cudaStream_t stream) {
    const int n_parts = (args.n_head / args.n_kv_head + H - 1) / H;
    const dim3 grid(args.n_splits, args.n_kv_head * n_parts, n_rows);
    quire_cuda::attend_splits<T, D, H><<<grid, 32 * quire_cuda::n_warps, 0, stream>>>(args);
    quire_cuda::add_splits<D><<<dim3(args.n_head, n_rows), D, 0, stream>>>(args);
}

template <class T, int D> void attend(const PagedArgs &args, int n_rows, cudaStream_t stream) {
    const int shared_by = args.n_head / args.n_kv_head;
    if (shared_by == 1) return attend<T, D, 1>(args, n_rows, stream);
    if (shared_by == 2) return attend<T, D, 2>(args, n_rows, stream);
    attend<T, D, 4>(args, n_rows, stream);
}

template <class T> void attend(const PagedArgs &args, int64_t head_dim, int n_rows, cudaStream_t stream) {
    if (head_dim == 64) return attend<T, 64>(args, n_rows, stream);
    if (head_dim == 128) return attend<T, 128>(args, n_rows, stream);
    attend<T, 256>(args, n_rows, stream);
}

} // namespace

bool quire_cuda_supports(int device, const ggml_tensor *op) {
    PagedAttention params;
    if (!quire::get_params(op, params)) return false;
    const int cc = ggml_cuda_info().devices[device].cc;
    if (!GGML_CUDA_CC_IS_NVIDIA(cc) || cc < GGML_CUDA_CC_VOLTA) return false;
    for (int i = 0; i < quire::paged_sources; ++i)
        if (op->src[i] == nullptr) return false;
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *tables = op->src[3], *spans = op->src[4];
    const int64_t head_dim = q->ne[0], n_head = q->ne[1], n_rows = q->ne[2];
    if (!has_head_dim(head_dim) || !is_pool(k, k->type, head_dim) || !is_pool(v, k->type, head_dim)) return false;
    const int64_t n_kv_head = k->ne[0] / head_dim;
    return q->type == GGML_TYPE_F32 && is_packed(q) && op->type == GGML_TYPE_F32 && is_packed(op) &&
           v->ne[0] == k->ne[0] && n_head % n_kv_head == 0 && n_head <= 65535 && n_rows <= 65535 && is_packed(tables) &&
           is_packed(spans);
}

bool quire_cuda_compute(ggml_backend_cuda_context &ctx, ggml_tensor *dst) {
    PagedAttention params;
    if (!quire::get_params(dst, params)) return false;
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *tables = dst->src[3], *sinks = dst->src[5];
    const int64_t head_dim = q->ne[0], n_head = q->ne[1], n_rows = q->ne[2], n_blocks = tables->ne[0];
    PagedArgs args{};
    args.q = static_cast<const float *>(q->data);
    args.k = static_cast<const char *>(k->data);
    args.v = static_cast<const char *>(v->data);
    args.k_token_bytes = k->nb[1];
    args.v_token_bytes = v->nb[1];
    args.tables = static_cast<const int *>(tables->data);
    args.spans = static_cast<const int *>(dst->src[4]->data);
    args.sinks = sinks == nullptr ? nullptr : static_cast<const float *>(sinks->data);
    args.out = static_cast<float *>(dst->data);
    args.n_blocks = static_cast<int>(n_blocks);
    args.n_head = static_cast<int>(n_head);
    args.n_kv_head = static_cast<int>(k->ne[0] / head_dim);
    args.scale = params.scale;
    args.soft_cap = params.soft_cap;
    const int64_t n_tiles = (n_blocks * quire::paged_block_tokens + quire_cuda::tile_tokens - 1) / quire_cuda::tile_tokens;
    args.n_splits = static_cast<int>(std::min<int64_t>(n_tiles, quire_cuda::most_splits));
    const size_t n_places = static_cast<size_t>(n_rows) * n_head * args.n_splits;
    ggml_cuda_pool_alloc<float> sums(ctx.pool(), n_places * head_dim);
    ggml_cuda_pool_alloc<float2> stats(ctx.pool(), n_places);
    args.sums = sums.get();
    args.stats = stats.get();
    if (k->type == GGML_TYPE_F16)
        attend<half>(args, head_dim, static_cast<int>(n_rows), ctx.stream());
    else
        attend<quire_cuda::bf16_t>(args, head_dim, static_cast<int>(n_rows), ctx.stream());
    CUDA_CHECK(cudaGetLastError());
    return true;
}

#else // the kernels were not tried there

bool quire_cuda_supports(int, const ggml_tensor *) { return false; }
bool quire_cuda_compute(ggml_backend_cuda_context &, ggml_tensor *) { return false; }

#endif
