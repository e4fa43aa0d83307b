// Layers of experts in ggml's CUDA module; operations.cu calls this.
#include "cuda/expert_operations.cuh"

#if !defined(GGML_USE_HIP) && !defined(GGML_USE_MUSA)

#include "cuda/intrinsics.cuh"
// The kernels need the functions above.
#include "cuda/expert_launch.cuh"

namespace {

using quire::ArrangedType;
using quire::ExpertLayer;
enum Source { x_source, experts_source, weights_source, added_source, gate_source, up_source, down_source, bias_sources };

bool is_rows(const ggml_tensor *x, int64_t n_columns, int64_t n_rows) {
    return x->type == GGML_TYPE_F32 && ggml_is_contiguous(x) && x->ne[0] == n_columns && ggml_nrows(x) == n_rows;
}

bool is_known(uint8_t number) {
    return number < quire::n_arranged_types && quire::is_expert_type(static_cast<ArrangedType>(number));
}

bool is_stack(const ggml_tensor *matrices, ArrangedType type, int64_t n_in, int64_t n_out, int64_t n_expert) {
    return quire::can_arrange(type, n_in, n_out) && ggml_is_contiguous(matrices) &&
           ggml_nbytes(matrices) >= quire::arranged_bytes(type, n_in, n_out) * n_expert;
}

} // namespace

bool quire_experts_supported(int device, const ggml_tensor *op, const ExpertLayer &layer) {
    const auto &properties = ggml_cuda_info().devices[device];
    for (int i : {x_source, experts_source, weights_source, gate_source, up_source, down_source})
        if (op->src[i] == nullptr) return false;
    if (!is_known(layer.up_type) || !is_known(layer.down_type) || layer.unit > ExpertLayer::silu_limited) return false;
    const auto up = static_cast<ArrangedType>(layer.up_type), down = static_cast<ArrangedType>(layer.down_type);
    const bool has_bf16 = up == ArrangedType::bf16 || down == ArrangedType::bf16;
    if (properties.cc < (has_bf16 ? GGML_CUDA_CC_AMPERE : GGML_CUDA_CC_TURING)) return false;
    if (layer.up_variant >= ExpertLayer::n_variants || layer.down_variant >= ExpertLayer::n_variants) return false;
    const ggml_tensor *experts = op->src[experts_source];
    const int64_t n_in = op->ne[0], n_tokens = ggml_nrows(op), n_used = experts->ne[0], n_choices = n_used * n_tokens;
    if (layer.n_expert < 1 || layer.n_expert > ExpertLayer::most_experts || n_choices > ExpertLayer::most_choices)
        return false;
    if (experts->type != GGML_TYPE_I32 || experts->nb[0] != sizeof(int32_t) || ggml_nrows(experts) != n_tokens) return false;
    if (!is_rows(op->src[x_source], n_in, n_tokens) || !is_rows(op, n_in, n_tokens)) return false;
    if (!is_rows(op->src[weights_source], 1, n_choices)) return false;
    if (op->src[added_source] != nullptr && !is_rows(op->src[added_source], n_in, n_tokens)) return false;
    if (!is_stack(op->src[gate_source], up, n_in, layer.n_inner, layer.n_expert) ||
        !is_stack(op->src[up_source], up, n_in, layer.n_inner, layer.n_expert) ||
        !is_stack(op->src[down_source], down, layer.n_inner, n_in, layer.n_expert))
        return false;
    for (int i = 0; i < 3; ++i)
        if (const ggml_tensor *bias = op->src[bias_sources + i];
            bias != nullptr && !is_rows(bias, i < 2 ? layer.n_inner : n_in, layer.n_expert))
            return false;
    const int n_tiles = quire_cuda::expert_tiles(static_cast<int>(n_choices), layer.n_expert);
    const int of_up = quire_cuda::expert_shared_bytes<true>(up, layer.up_variant, n_tiles),
              of_down = quire_cuda::expert_shared_bytes<false>(down, layer.down_variant, n_tiles);
    return static_cast<size_t>(std::max(of_up, of_down)) + 1024 <= properties.smpbo;
}

void quire_experts_compute(ggml_backend_cuda_context &ctx, ggml_tensor *dst, const ExpertLayer &layer) {
    auto floats = [&](int i) { return dst->src[i] == nullptr ? nullptr : static_cast<const float *>(dst->src[i]->data); };
    auto bytes = [&](int i) { return static_cast<const char *>(dst->src[i]->data); };
    const ggml_tensor *experts = dst->src[experts_source];
    quire_cuda::ExpertRun run{};
    run.x = floats(x_source);
    run.weights = floats(weights_source);
    run.added = floats(added_source);
    run.experts = static_cast<const int *>(experts->data);
    run.gate = bytes(gate_source);
    run.up = bytes(up_source);
    run.down = bytes(down_source);
    run.gate_bias = floats(bias_sources);
    run.up_bias = floats(bias_sources + 1);
    run.down_bias = floats(bias_sources + 2);
    run.out = static_cast<float *>(dst->data);
    run.n_in = static_cast<int>(dst->ne[0]);
    run.n_tokens = static_cast<int>(ggml_nrows(dst));
    run.n_used = static_cast<int>(experts->ne[0]);
    run.experts_step = static_cast<int>(experts->nb[1] / sizeof(int32_t));
    const size_t n_choices = static_cast<size_t>(run.n_tokens) * run.n_used;
    ggml_cuda_pool_alloc<char> rounded(ctx.pool(), quire_cuda::expert_rounded_bytes(layer, run.n_in, run.n_tokens, run.n_used));
    ggml_cuda_pool_alloc<float> factors(ctx.pool(), n_choices), inner(ctx.pool(), n_choices * layer.n_inner),
        each(ctx.pool(), n_choices * run.n_in);
    ggml_cuda_pool_alloc<int> order(ctx.pool(), n_choices);
    ggml_cuda_pool_alloc<quire_cuda::Work> works(
        ctx.pool(), quire_cuda::expert_works(static_cast<int>(n_choices), layer.n_expert));
    run.rounded = rounded.get();
    run.row_factors = factors.get();
    run.inner = inner.get();
    run.each = each.get();
    run.order = order.get();
    run.works = works.get();
    quire_cuda::multiply_experts(
        layer, run, [&](auto kernel, const auto &args, int x, int y, int n_threads, int n_bytes) {
            if (n_bytes > 48 * 1024)
                CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, n_bytes));
            kernel<<<dim3(x, y), n_threads, n_bytes, ctx.stream()>>>(args);
        });
}

#endif
