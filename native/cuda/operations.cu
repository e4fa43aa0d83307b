// Quire's own operations in ggml's CUDA module; vendor/edits.py patches the module to call them.
#include "cuda/batch_operations.cuh"
#include "cuda/cache_heads.h"
#include "cuda/expert_operations.cuh"
#include "cuda/paged_attention.h"
#include "cuda/prompt_attention.h"
#include "cuda/row_product.h"

#include <cstdlib>

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

#include "cuda/intrinsics.cuh"
// The kernels need the functions above.
#include "cuda/cache_heads.cuh"
#include "cuda/paged_attention.cuh"
#include "cuda/prompt_attention.cuh"
#include "cuda/row_product.cuh"

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

bool attention_supported(const ggml_tensor *op) {
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

void compute_attention(ggml_backend_cuda_context &ctx, ggml_tensor *dst, const PagedAttention &params) {
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
}

bool prompt_supported(int cc, const ggml_tensor *op, const quire::PromptAttention &params) {
    if (!attention_supported(op) || op->src[0]->ne[0] > 128 || params.stream_rows < 1) return false;
    const int needed = op->src[1]->type == GGML_TYPE_BF16 ? GGML_CUDA_CC_AMPERE : GGML_CUDA_CC_TURING;
    const int64_t n_streams = op->src[3]->ne[1];
    return cc >= needed && n_streams <= 65535 && op->src[0]->ne[2] == n_streams * params.stream_rows;
}

template <class T, int D> void attend_prompt(const quire_cuda::PromptArgs &args, int n_streams, cudaStream_t stream) {
    constexpr int rows = quire_cuda::prompt_rows, n_bytes = quire_cuda::PromptMemory<D>::total_bytes;
    static_assert(n_bytes + rows * 2 * sizeof(int) <= 48 * 1024);
    const dim3 grid((args.stream_rows + rows - 1) / rows, args.n_head, n_streams);
    quire_cuda::attend_prompt<T, D><<<grid, quire_cuda::prompt_threads, n_bytes, stream>>>(args);
}

template <class T> void attend_prompt(const quire_cuda::PromptArgs &args, int64_t head_dim, int n_streams, cudaStream_t stream) {
    if (head_dim == 64) return attend_prompt<T, 64>(args, n_streams, stream);
    attend_prompt<T, 128>(args, n_streams, stream);
}

void compute_prompt(ggml_backend_cuda_context &ctx, ggml_tensor *dst, const quire::PromptAttention &params) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *tables = dst->src[3], *sinks = dst->src[5];
    quire_cuda::PromptArgs args{};
    args.q = static_cast<const float *>(q->data);
    args.k = static_cast<const char *>(k->data);
    args.v = static_cast<const char *>(v->data);
    args.k_token_bytes = k->nb[1];
    args.v_token_bytes = v->nb[1];
    args.tables = static_cast<const int *>(tables->data);
    args.spans = static_cast<const int *>(dst->src[4]->data);
    args.sinks = sinks == nullptr ? nullptr : static_cast<const float *>(sinks->data);
    args.out = static_cast<float *>(dst->data);
    args.n_blocks = static_cast<int>(tables->ne[0]);
    args.n_head = static_cast<int>(q->ne[1]);
    args.n_kv_head = static_cast<int>(k->ne[0] / q->ne[0]);
    args.stream_rows = params.stream_rows;
    args.scale = params.scale;
    args.soft_cap = params.soft_cap;
    const auto n_streams = static_cast<int>(tables->ne[1]);
    if (k->type == GGML_TYPE_F16)
        attend_prompt<half>(args, q->ne[0], n_streams, ctx.stream());
    else
        attend_prompt<quire_cuda::bf16_t>(args, q->ne[0], n_streams, ctx.stream());
}

// True if the heads of a row are contiguous.
bool are_heads(const ggml_tensor *x) {
    return x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float) && x->nb[1] == x->ne[0] * sizeof(float) &&
           x->nb[2] % sizeof(float) == 0;
}

bool heads_supported(const ggml_tensor *op, const quire::CacheHeads &params) {
    for (int i = 0; i < 7; ++i)
        if (op->src[i] == nullptr) return false;
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2];
    const int64_t head_dim = q->ne[0];
    return are_heads(q) && are_heads(k) && are_heads(v) && k->ne[0] == head_dim && v->ne[0] == head_dim &&
           k->ne[1] == v->ne[1] && head_dim <= quire_cuda::most_head_dim && params.n_dims <= head_dim &&
           is_pool(op->src[3], op->src[3]->type, head_dim) && is_pool(op->src[4], op->src[3]->type, head_dim) &&
           op->src[3]->ne[0] == head_dim * k->ne[1] && op->src[4]->ne[0] == head_dim * k->ne[1] && is_packed(op) &&
           op->src[5]->type == GGML_TYPE_I64 && op->src[6]->type == GGML_TYPE_I32;
}

void compute_heads(ggml_backend_cuda_context &ctx, ggml_tensor *dst, const quire::CacheHeads &params) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    auto floats = [&](int i) { return dst->src[i] == nullptr ? nullptr : static_cast<const float *>(dst->src[i]->data); };
    quire_cuda::HeadsArgs args{};
    args.q = floats(0);
    args.k = floats(1);
    args.v = floats(2);
    args.k_pool = static_cast<char *>(dst->src[3]->data);
    args.v_pool = static_cast<char *>(dst->src[4]->data);
    args.slots = static_cast<const long long *>(dst->src[5]->data);
    args.positions = static_cast<const int *>(dst->src[6]->data);
    args.q_weight = floats(7);
    args.k_weight = floats(8);
    args.factors = floats(9);
    args.out = static_cast<float *>(dst->data);
    args.q_row = static_cast<long long>(q->nb[2] / sizeof(float));
    args.k_row = static_cast<long long>(k->nb[2] / sizeof(float));
    args.v_row = static_cast<long long>(v->nb[2] / sizeof(float));
    args.k_token_bytes = dst->src[3]->nb[1];
    args.v_token_bytes = dst->src[4]->nb[1];
    args.n_head = static_cast<int>(q->ne[1]);
    args.n_kv_head = static_cast<int>(k->ne[1]);
    args.head_dim = static_cast<int>(q->ne[0]);
    args.n_dims = params.n_dims;
    args.norms_q = params.norms_q;
    args.norms_k = params.norms_k;
    args.halves = params.halves;
    args.is_bf16 = dst->src[3]->type == GGML_TYPE_BF16;
    args.eps = params.eps;
    args.freq_scale = params.freq_scale;
    args.magnitude = params.magnitude;
    args.octaves = -2.0 / params.n_dims * std::log2(static_cast<double>(params.freq_base));
    const int n_heads = args.n_head + 2 * args.n_kv_head;
    const dim3 grid(static_cast<unsigned>(q->ne[2]), (n_heads + quire_cuda::heads_together - 1) / quire_cuda::heads_together);
    quire_cuda::cache_heads<<<grid, 32 * quire_cuda::heads_together, 0, ctx.stream()>>>(args);
}

// Calls use(W()) with the type of the matrix; false if there is none.
template <class Use> bool with_product_type(ggml_type type, const Use &use) {
    if (type == GGML_TYPE_Q4_0) return use(quire_cuda::Q4()), true;
    if (type == GGML_TYPE_Q8_0) return use(quire_cuda::Q8()), true;
    if (type == GGML_TYPE_Q4_K) return use(quire_cuda::Q4K()), true;
    if (type == GGML_TYPE_Q5_K) return use(quire_cuda::Q5K()), true;
    if (type == GGML_TYPE_Q6_K) return use(quire_cuda::Q6K()), true;
    if (type == GGML_TYPE_F16) return use(quire_cuda::Wide<half>()), true;
    if (type == GGML_TYPE_BF16) return use(quire_cuda::Wide<quire_cuda::bf16_t>()), true;
    return false;
}

bool is_product_matrix(const ggml_tensor *matrix) {
    constexpr size_t most_bytes = 48 * 1024; // shared memory without asking for more
    size_t bytes = most_bytes + 1;
    with_product_type(matrix->type, [&](auto w) {
        bytes = quire_cuda::product_shared_bytes<decltype(w)>(static_cast<int>(matrix->ne[0]));
    });
    return matrix->ne[0] <= 32768 && bytes + 1024 <= most_bytes && matrix->ne[0] % quire_cuda::weights_together == 0 &&
           ggml_is_contiguous(matrix) && ggml_nrows(matrix) == matrix->ne[1];
}

bool product_supported(const ggml_tensor *op) {
    const ggml_tensor *matrix = op->src[0], *x = op->src[1], *second = op->src[4];
    if (matrix == nullptr || x == nullptr || !is_product_matrix(matrix)) return false;
    if (second != nullptr && (!is_product_matrix(second) || second->type != matrix->type || second->ne[1] != matrix->ne[1]))
        return false;
    for (const ggml_tensor *row : {x, static_cast<const ggml_tensor *>(op->src[2]), static_cast<const ggml_tensor *>(op->src[3])})
        if (row != nullptr && (row->type != GGML_TYPE_F32 || !is_packed(row) || ggml_nrows(row) != 1)) return false;
    return x->ne[0] == matrix->ne[0] && op->ne[0] == matrix->ne[1];
}

template <class W> void multiply(const quire_cuda::ProductArgs &args, int device, cudaStream_t stream) {
    const int per_block = quire_cuda::product_warps, most = ggml_cuda_info().devices[device].nsm * quire_cuda::product_blocks;
    const int n_blocks = std::min((args.n_out + per_block - 1) / per_block, most);
    quire_cuda::multiply_row<W>
        <<<n_blocks, 32 * per_block, quire_cuda::product_shared_bytes<W>(args.n_in), stream>>>(args);
}

void compute_product(ggml_backend_cuda_context &ctx, ggml_tensor *dst, const quire::RowProduct &params) {
    const ggml_tensor *matrix = dst->src[0];
    auto data = [&](int i) { return dst->src[i] == nullptr ? nullptr : dst->src[i]->data; };
    quire_cuda::ProductArgs args{};
    args.matrix = static_cast<const char *>(matrix->data);
    args.second = static_cast<const char *>(data(4));
    args.x = static_cast<const float *>(data(1));
    args.norm = static_cast<const float *>(data(2));
    args.added = static_cast<const float *>(data(3));
    args.out = static_cast<float *>(dst->data);
    args.row_bytes = matrix->nb[1];
    args.n_in = static_cast<int>(matrix->ne[0]);
    args.n_out = static_cast<int>(matrix->ne[1]);
    args.is_normed = params.is_normed;
    args.gate = params.gate;
    args.eps = params.eps;
    with_product_type(matrix->type, [&](auto w) { multiply<decltype(w)>(args, ctx.device, ctx.stream()); });
}

} // namespace

bool quire_cuda_supports(int device, const ggml_tensor *op) {
    const int cc = ggml_cuda_info().devices[device].cc;
    if (!GGML_CUDA_CC_IS_NVIDIA(cc) || cc < GGML_CUDA_CC_VOLTA) return false;
    if (PagedAttention params; quire::get_params(op, params)) return attention_supported(op);
    if (quire::PromptAttention params; quire::get_params(op, params)) return prompt_supported(cc, op, params);
    if (quire::CacheHeads params; quire::get_params(op, params)) return heads_supported(op, params);
    if (quire::RowProduct params; quire::get_params(op, params)) return product_supported(op);
    if (quire::BatchProduct params; quire::get_params(op, params)) return quire_batch_supported(device, op, params);
    if (quire::ExpertLayer params; quire::get_params(op, params)) return quire_experts_supported(device, op, params);
    return false;
}

bool quire_cuda_compute(ggml_backend_cuda_context &ctx, ggml_tensor *dst) {
    if (PagedAttention params; quire::get_params(dst, params))
        compute_attention(ctx, dst, params);
    else if (quire::PromptAttention params; quire::get_params(dst, params))
        compute_prompt(ctx, dst, params);
    else if (quire::CacheHeads params; quire::get_params(dst, params))
        compute_heads(ctx, dst, params);
    else if (quire::RowProduct params; quire::get_params(dst, params))
        compute_product(ctx, dst, params);
    else if (quire::BatchProduct params; quire::get_params(dst, params))
        quire_batch_compute(ctx, dst, params);
    else if (quire::ExpertLayer params; quire::get_params(dst, params))
        quire_experts_compute(ctx, dst, params);
    else
        return false;
    CUDA_CHECK(cudaGetLastError());
    return true;
}

// True from QUIRE_CUBLAS_ROWS rows on; without the variable never.
bool quire_cuda_wants_cublas(const ggml_tensor *matrix, int64_t n_rows) {
    static const long from = [] {
        const char *asked = std::getenv("QUIRE_CUBLAS_ROWS");
        return asked == nullptr ? 0L : std::strtol(asked, nullptr, 10);
    }();
    return from > 0 && n_rows >= from && ggml_is_quantized(matrix->type) && ggml_nrows(matrix) == matrix->ne[1];
}

#else // the kernels are untested on HIP and MUSA

bool quire_cuda_supports(int, const ggml_tensor *) { return false; }
bool quire_cuda_compute(ggml_backend_cuda_context &, ggml_tensor *) { return false; }
bool quire_cuda_wants_cublas(const ggml_tensor *, int64_t) { return false; }

#endif
