// Quire's own operations in ggml's Vulkan module; vendor/edits.py patches the module to call them.
#include "cuda/paged_attention.h"

#include "ggml-vulkan-common.h"

#include <cstdlib>
#include <map>

namespace {

using quire::PagedAttention;

// SPIR-V, as glslc writes it for C.
constexpr uint32_t paged_attention_code[] =
#include "paged_attention.inc"
    ;
constexpr uint32_t add_splits_code[] =
#include "add_splits.inc"
    ;

constexpr int64_t block_tokens = quire::paged_block_tokens, most_splits = 64, least_split = 64;

// As in paged_attention.comp.
struct AttendArgs {
    uint32_t q_at, k_at, v_at, tables_at, spans_at;
    uint32_t k_token_words, v_token_words;
    uint32_t n_blocks, n_head, n_kv_head, n_splits, n_rows;
    float scale, soft_cap;
};

// As in add_splits.comp.
struct AddArgs {
    uint32_t spans_at, sinks_at, out_at;
    uint32_t n_head, n_splits, n_rows;
};

struct Shader {
    const char *name;
    const uint32_t *code;
    size_t bytes;
    uint32_t n_bindings, n_args; // n_args: bytes of push constants
};
constexpr Shader attend{"quire_paged_attention", paged_attention_code, sizeof(paged_attention_code), 6,
                        sizeof(AttendArgs)};
constexpr Shader add_splits{"quire_add_splits", add_splits_code, sizeof(add_splits_code), 4, sizeof(AddArgs)};

vk_pipeline compile(const vk_device &device, const Shader &shader, const std::vector<uint32_t> &constants) {
    auto made = std::make_shared<vk_pipeline_struct>();
    made->name = shader.name;
    made->parameter_count = shader.n_bindings;
    made->push_constant_size = shader.n_args;
    made->wg_denoms = {1, 1, 1};
    made->align = 1;
    made->initialized = true;
    made->shader_module = device->device.createShaderModule({{}, shader.bytes, shader.code});
    const vk::PushConstantRange args(vk::ShaderStageFlagBits::eCompute, 0, shader.n_args);
    made->layout = device->device.createPipelineLayout({{}, device->dsl, args});
    std::vector<vk::SpecializationMapEntry> entries;
    for (uint32_t i = 0; i < constants.size(); ++i) entries.emplace_back(i, i * sizeof(uint32_t), sizeof(uint32_t));
    const vk::SpecializationInfo values(static_cast<uint32_t>(entries.size()), entries.data(),
                                        constants.size() * sizeof(uint32_t), constants.data());
    const vk::PipelineShaderStageCreateInfo stage({}, vk::ShaderStageFlagBits::eCompute, made->shader_module, "main",
                                                  &values);
    made->pipeline = device->device.createComputePipeline(VK_NULL_HANDLE, {{}, stage, made->layout}).value;
    made->compiled = true;
    return made;
}

// Compiled when first used.  ggml destroys the pipelines that it knows together with the device.
vk_pipeline pipeline(const vk_device &device, const Shader &shader, const std::vector<uint32_t> &constants) {
    using Key = std::tuple<const void *, const char *, std::vector<uint32_t>>;
    static auto &made = *new std::map<Key, vk_pipeline>; // outlives devices, which end with the process
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    vk_pipeline &found = made[Key(device.get(), shader.name, constants)];
    if (found == nullptr) {
        found = compile(device, shader, constants);
        const std::lock_guard known(device->compile_mutex);
        device->all_pipelines.push_back(found);
    }
    return found;
}

// A group of threads computes so many heads that share K and V together.
uint32_t heads_together(int64_t head_dim, int64_t shared_by) {
    return static_cast<uint32_t>(std::min<int64_t>(head_dim > 128 ? 2 : 4, shared_by >= 4 ? 4 : shared_by));
}

// Numbers in the shared memory of a group of threads.
int64_t shared_floats(int64_t head_dim, int64_t together) {
    return together * head_dim + std::max(together * block_tokens * head_dim / 8, int64_t{1024}) +
           together * block_tokens;
}

bool is_packed(const ggml_tensor *x) { return x->nb[0] == ggml_type_size(x->type) && ggml_is_contiguous(x); }

bool is_pool(const ggml_tensor *pool, int64_t head_dim) {
    return pool->type == GGML_TYPE_F16 && pool->nb[0] == 2 && pool->ne[0] % head_dim == 0 && pool->nb[1] % 16 == 0;
}

// The number of splits of the longest row that the tables can describe.
int64_t n_splits_of(const ggml_tensor *tables) {
    return std::min((tables->ne[0] * block_tokens + least_split - 1) / least_split, most_splits);
}

// Bytes of the splits' results.
size_t partial_bytes(const ggml_tensor *q, const ggml_tensor *tables) {
    const int64_t n_places = q->ne[1] * q->ne[2] * n_splits_of(tables);
    return static_cast<size_t>(n_places * (q->ne[0] + 2)) * sizeof(float);
}

bool attention_supported(const vk_device &device, const ggml_tensor *op) {
    for (int i = 0; i < quire::paged_sources; ++i)
        if (op->src[i] == nullptr) return false;
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *tables = op->src[3], *spans = op->src[4];
    const vk::PhysicalDeviceLimits &limits = device->properties.limits;
    const int64_t head_dim = q->ne[0], n_head = q->ne[1], n_rows = q->ne[2];
    if (head_dim != 32 && head_dim != 64 && head_dim != 128 && head_dim != 256) return false;
    if (!is_pool(k, head_dim) || !is_pool(v, head_dim) || v->ne[0] != k->ne[0]) return false;
    const int64_t n_kv_head = k->ne[0] / head_dim;
    return q->type == GGML_TYPE_F32 && is_packed(q) && op->type == GGML_TYPE_F32 && is_packed(op) &&
           n_head % n_kv_head == 0 && n_head <= limits.maxComputeWorkGroupCount[0] &&
           n_head <= limits.maxComputeWorkGroupCount[1] && n_rows <= limits.maxComputeWorkGroupCount[1] &&
           n_rows <= limits.maxComputeWorkGroupCount[2] && is_packed(tables) && is_packed(spans) &&
           shared_floats(head_dim, heads_together(head_dim, n_head / n_kv_head)) * sizeof(float) <=
               limits.maxComputeSharedMemorySize &&
           limits.maxComputeWorkGroupInvocations >= 128 && partial_bytes(q, tables) <= limits.maxStorageBufferRange;
}

// The offset of a tensor from the start of its binding, in 4 bytes.
uint32_t offset_of(ggml_backend_vk_context *ctx, const ggml_tensor *x) { return get_misalign_bytes(ctx, x) / 4; }

void compute_attention(ggml_backend_vk_context *ctx, vk_context &step, ggml_tensor *dst, const PagedAttention &params) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *tables = dst->src[3], *spans = dst->src[4],
                      *sinks = dst->src[5];
    const int64_t head_dim = q->ne[0], n_head = q->ne[1], n_rows = q->ne[2], n_kv_head = k->ne[0] / head_dim;
    const auto n_splits = static_cast<uint32_t>(n_splits_of(tables));
    const uint32_t together = heads_together(head_dim, n_head / n_kv_head), dim = static_cast<uint32_t>(head_dim);
    vk_pipeline attend_pipeline = pipeline(ctx->device, attend, {dim, together});
    vk_pipeline add_pipeline = pipeline(ctx->device, add_splits, {dim, sinks != nullptr ? 1U : 0U});
    ggml_pipeline_request_descriptor_sets(ctx, attend_pipeline, 1);
    ggml_pipeline_request_descriptor_sets(ctx, add_pipeline, 1);
    const size_t bytes = partial_bytes(q, tables);
    if (ctx->prealloc_size_split_k < bytes) {
        ctx->prealloc_size_split_k = bytes;
        ggml_vk_preallocate_buffers(ctx, step);
    }
    auto binding = [&](const ggml_tensor *x) { return ggml_vk_tensor_subbuffer(ctx, x, true); };
    const vk_subbuffer partial{ctx->prealloc_split_k, 0, bytes};
    if (ctx->prealloc_split_k_need_sync) ggml_vk_sync_buffers(ctx, step);

    AttendArgs args{};
    args.q_at = offset_of(ctx, q);
    args.k_at = offset_of(ctx, k);
    args.v_at = offset_of(ctx, v);
    args.tables_at = offset_of(ctx, tables);
    args.spans_at = offset_of(ctx, spans);
    args.k_token_words = static_cast<uint32_t>(k->nb[1] / 4);
    args.v_token_words = static_cast<uint32_t>(v->nb[1] / 4);
    args.n_blocks = static_cast<uint32_t>(tables->ne[0]);
    args.n_head = static_cast<uint32_t>(n_head);
    args.n_kv_head = static_cast<uint32_t>(n_kv_head);
    args.n_splits = n_splits;
    args.n_rows = static_cast<uint32_t>(n_rows);
    args.scale = params.scale;
    args.soft_cap = params.soft_cap;
    const auto n_parts = static_cast<uint32_t>((n_head / n_kv_head + together - 1) / together);
    ggml_vk_dispatch_pipeline(ctx, step, attend_pipeline,
                              {binding(q), binding(k), binding(v), binding(tables), binding(spans), partial}, args,
                              {n_splits, args.n_kv_head * n_parts, args.n_rows});
    ggml_vk_sync_buffers(ctx, step);
    const AddArgs added{
        args.spans_at, sinks != nullptr ? offset_of(ctx, sinks) : 0, offset_of(ctx, dst), args.n_head, n_splits,
        args.n_rows};
    ggml_vk_dispatch_pipeline(ctx, step, add_pipeline,
                              {binding(spans), sinks != nullptr ? binding(sinks) : binding(q), partial, binding(dst)},
                              added, {args.n_head, args.n_rows, 1});
    ctx->prealloc_split_k_need_sync = true;
}

} // namespace

bool quire_vulkan_supports(const vk_device &device, const ggml_tensor *op) {
    // Only CPU drivers have run it so far.
    static const bool is_wanted = [] {
        const char *given = std::getenv("QUIRE_VULKAN_ATTENTION");
        return given != nullptr && std::strcmp(given, "1") == 0;
    }();
    if (!is_wanted && device->properties.deviceType != vk::PhysicalDeviceType::eCpu) return false;
    PagedAttention attention;
    return quire::get_params(op, attention) && attention_supported(device, op);
}

void quire_vulkan_compute(ggml_backend_vk_context *ctx, vk_context &step, ggml_tensor *dst) {
    PagedAttention attention;
    if (quire::get_params(dst, attention)) return compute_attention(ctx, step, dst, attention);
    GGML_ABORT("an operation of Quire's that the device does not support"); // it was asked before
}
