// Products of few rows in ggml's CUDA module; operations.cu calls this.
#include "cuda/batch_operations.cuh"

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

#include "cuda/intrinsics.cuh"
// The kernels need the functions above.
#include "cuda/batch_launch.cuh"

namespace {

bool is_rows(const ggml_tensor *x, int64_t n_columns, int64_t n_rows) {
    return x->type == GGML_TYPE_F32 && ggml_is_contiguous(x) && x->ne[0] == n_columns && ggml_nrows(x) == n_rows;
}

} // namespace

bool quire_batch_supported(int device, const ggml_tensor *op, const quire::BatchProduct &params) {
    const auto &properties = ggml_cuda_info().devices[device];
    const int needed = params.type == quire::ArrangedType::bf16 ? GGML_CUDA_CC_AMPERE : GGML_CUDA_CC_TURING;
    const ggml_tensor *matrix = op->src[0], *x = op->src[1], *norm = op->src[2], *added = op->src[3];
    if (properties.cc < needed || matrix == nullptr || x == nullptr) return false;
    const auto type = static_cast<int>(params.type);
    if (type < 0 || type >= quire::n_arranged_types || !quire::can_arrange(params.type, params.n_in, params.n_out))
        return false;
    const int64_t n_rows = ggml_nrows(x);
    if (n_rows < 1 || n_rows > quire::BatchProduct::most_rows || !is_rows(x, params.n_in, n_rows)) return false;
    if (!is_rows(op, params.n_out, n_rows) || (norm != nullptr && !is_rows(norm, params.n_in, 1))) return false;
    if (added != nullptr && !is_rows(added, params.n_out, n_rows)) return false;
    if (params.plan.variant < 0 || params.plan.variant >= quire::n_batch_variants || params.plan.n_splits < 1 ||
        params.plan.n_splits > quire::most_batch_splits)
        return false;
    if (ggml_nbytes(matrix) < quire::arranged_bytes(params.type, params.n_in, params.n_out)) return false;
    const int tiles = quire_cuda::batch_tiles(static_cast<int>(n_rows));
    return static_cast<size_t>(quire_cuda::batch_shared_bytes(params.type, params.plan.variant, tiles)) <=
           properties.smpbo;
}

void quire_batch_compute(ggml_backend_cuda_context &ctx, ggml_tensor *dst, const quire::BatchProduct &params) {
    auto data = [&](int i) { return dst->src[i] == nullptr ? nullptr : static_cast<const float *>(dst->src[i]->data); };
    quire_cuda::BatchArgs args{};
    args.x = data(1);
    args.norm = data(2);
    args.added = data(3);
    args.out = static_cast<float *>(dst->data);
    args.n_in = params.n_in;
    args.n_out = params.n_out;
    args.n_rows = static_cast<int>(ggml_nrows(dst));
    args.n_splits = params.plan.n_splits;
    args.is_normed = params.is_normed;
    args.eps = params.eps;
    quire_cuda::set_sizes(args, params.type, dst->src[0]->data);
    ggml_cuda_pool_alloc<char> rounded(ctx.pool(), quire_cuda::rounded_bytes(args.n_in, args.n_rows));
    ggml_cuda_pool_alloc<float> factors(ctx.pool(), 8 * args.n_tiles);
    ggml_cuda_pool_alloc<float> parts(ctx.pool());
    if (args.n_splits > 1) parts.alloc(quire_cuda::batch_parts(args.n_out, args.n_rows, args.n_splits));
    args.rounded = rounded.get();
    args.row_factors = factors.get();
    args.parts = parts.get();
    quire_cuda::multiply_batch(
        args, params.type, params.plan.variant, [&](auto kernel, int x, int y, int z, int n_threads, int n_bytes) {
            // More than 48 KB of shared memory must be asked for; the call is cheap next to a launch.
            if (n_bytes > 48 * 1024)
                CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes));
            kernel<<<dim3(x, y, z), n_threads, n_bytes, ctx.stream()>>>(args);
        });
}

#endif
