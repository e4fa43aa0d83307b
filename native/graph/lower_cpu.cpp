#include "graph/lower_cpu.h"

#include "core/error.h"
#include "kernels/matmul.h"

namespace quire {
namespace {

// What one pair of nodes (write, attend) of one graph needs.
struct AttentionNode {
    AttentionShape shape;
    const CpuStep *step;
    std::atomic<int> *next;
    void *k_pool, *v_pool;
    const float *sinks;
};

const float *floats(const ggml_tensor *tensor) { return static_cast<const float *>(tensor->data); }

// Sources: the K pool (whose view the node is), k, v.
void write_node(ggml_tensor *dst, int worker, int n_workers, void *data) {
    const auto &node = *static_cast<const AttentionNode *>(data);
    kv_write(node.shape, node.step->batch, floats(dst->src[1]), floats(dst->src[2]), node.k_pool, node.v_pool, worker,
             n_workers);
}

// Sources: q, and the write node for the order.
void attend_node(ggml_tensor *dst, int, int, void *data) {
    const auto &node = *static_cast<const AttentionNode *>(data);
    AttentionData arrays{};
    arrays.q = floats(dst->src[0]);
    arrays.k_pool = node.k_pool;
    arrays.v_pool = node.v_pool;
    arrays.sinks = node.sinks;
    arrays.out = static_cast<float *>(dst->data);
    arrays.n_out_rows = static_cast<int>(dst->ne[2]);
    paged_attention(node.shape, node.step->batch, arrays, *node.next);
}

// What a product or look-up needs.
struct MatrixNode {
    PackedWeights weights;
    const CpuStep *step;
    Lead lead;
    std::atomic<int> *next;
};

// Source: the activations [n, n_in].
void round_node(ggml_tensor *dst, int worker, int n_workers, void *data) {
    const auto &node = *static_cast<const MatrixNode *>(data);
    QuantizedRows to{dst->src[0]->ne[0], static_cast<uint8_t *>(dst->data)};
    quantize_rows(floats(dst->src[0]), node.step->n_real(node.lead), worker, n_workers, to);
}

// Source: the activations, rounded or (few rows) as they are.  Rows behind the real ones keep what is there.
void product_node(ggml_tensor *dst, int, int n_workers, void *data) {
    const auto &node = *static_cast<const MatrixNode *>(data);
    const bool raw = dst->src[0]->type == GGML_TYPE_F32;
    Matmul matmul{node.weights,
                  raw ? floats(dst->src[0]) : nullptr,
                  {node.weights.n_in, static_cast<uint8_t *>(dst->src[0]->data)},
                  node.step->n_real(node.lead),
                  static_cast<float *>(dst->data)};
    packed_matmul(matmul, *node.next, n_workers);
}

// Source: ids.
void embed_node(ggml_tensor *dst, int worker, int n_workers, void *data) {
    const auto &node = *static_cast<const MatrixNode *>(data);
    const auto *ids = static_cast<const int32_t *>(dst->src[0]->data);
    for (int row = worker; row < node.step->n_real(node.lead); row += n_workers)
        unpack_row(node.weights, ids[row], static_cast<float *>(dst->data) + row * node.weights.n_in);
}

// The kernels read dense rows; ggml copies only what is not dense already.
ggml_tensor *dense(GraphBuild &build, ggml_tensor *x) {
    return ggml_is_contiguous(x) ? x : ggml_cont(build.context(), x);
}

KvType kv_type(DType dtype) {
    switch (dtype) {
    case DType::f32: return KvType::f32;
    case DType::f16: return KvType::f16;
    case DType::bf16: return KvType::bf16;
    default: throw UnsupportedError("attend", cat("the cache must be f32, f16 or bf16 but is ", name(dtype)));
    }
}

} // namespace

void CpuStep::begin(const StepBatch &from) {
    batch.n_rows = static_cast<int>(from.tokens.size());
    n_logit_rows = static_cast<int>(from.logit_rows.size());
    batch.n_sequences = static_cast<int>(from.n_kv.size());
    batch.row_begin = from.row_begin.data();
    batch.n_kv = from.n_kv.data();
    batch.table_begin = from.table_begin.data();
    batch.tables = from.tables.data();
    batch.slots = from.slots.data();
    for (std::atomic<int> &counter : next) counter.store(0, std::memory_order_relaxed);
}

ggml_tensor *CpuLowering::attend(GraphBuild &build, const op::Attend &operation, AttendInputs inputs) const {
    ggml_context *ctx = build.context();
    const CacheSpec &spec = build.trace.cache[static_cast<size_t>(operation.layer)];
    const KvStore::Layer &layer = store().layer(operation.layer);
    int n_head = static_cast<int>(inputs.q->ne[1]);
    auto node = std::make_shared<AttentionNode>(
        AttentionNode{{n_head, spec.n_kv_head, spec.head_dim, spec.v_head_dim, kv_type(store().dtype()),
                       operation.scale, operation.soft_cap, spec.window},
                      &step_,
                      &step_.next[build.values.size()],
                      layer.k.data(),
                      layer.v.data(),
                      operation.sinks ? floats(operation.sinks->tensor.handle()) : nullptr});
    build.out.node_data.push_back(node);
    ggml_tensor *to_write[] = {dense(build, inputs.k), dense(build, inputs.v)};
    ggml_tensor *written =
        ggml_custom_inplace(ctx, layer.k.handle(), to_write, 2, write_node, GGML_N_TASKS_MAX, node.get());
    ggml_tensor *to_read[] = {dense(build, inputs.q), written};
    return ggml_custom_4d(ctx, GGML_TYPE_F32, spec.v_head_dim, n_head, build.out.key.n_tokens, 1, to_read, 2,
                          attend_node, GGML_N_TASKS_MAX, node.get());
}

ggml_tensor *CpuLowering::embed(GraphBuild &build, const op::Embed &operation, ggml_tensor *tokens) const {
    const PackedWeights *weights = packed(operation.weight);
    if (weights == nullptr) return StockLowering::embed(build, operation, tokens);
    auto node = std::make_shared<MatrixNode>(MatrixNode{*weights, &step_, Lead::tokens, nullptr});
    build.out.node_data.push_back(node);
    return ggml_custom_4d(build.context(), GGML_TYPE_F32, weights->n_in, tokens->ne[0], 1, 1, &tokens, 1, embed_node,
                          GGML_N_TASKS_MAX, node.get());
}

ggml_tensor *CpuLowering::rounded(GraphBuild &build, Lead lead, ggml_tensor *x) const {
    ggml_tensor *&found = build.rounded[x];
    if (found != nullptr) return found;
    ggml_tensor *source = dense(build, x);
    if (x->ne[1] <= max_raw_rows) return found = source;
    auto node = std::make_shared<MatrixNode>(MatrixNode{{}, &step_, lead, nullptr});
    build.out.node_data.push_back(node);
    return found = ggml_custom_4d(build.context(), GGML_TYPE_I8, QuantizedRows::row_bytes(x->ne[0]), x->ne[1], 1, 1,
                                  &source, 1, round_node, GGML_N_TASKS_MAX, node.get());
}

ggml_tensor *CpuLowering::product(GraphBuild &build, const Operation &operation, ggml_tensor *x) const {
    const PackedWeights *weights = packed(std::get<op::Linear>(operation.kind).weight);
    if (weights == nullptr) return StockLowering::product(build, operation, x);
    const Lead lead = operation.shape.lead;
    auto node = std::make_shared<MatrixNode>(MatrixNode{*weights, &step_, lead, &step_.next[build.values.size()]});
    build.out.node_data.push_back(node);
    ggml_tensor *source = weights->is_float() ? dense(build, x) : rounded(build, lead, x);
    return ggml_custom_4d(build.context(), GGML_TYPE_F32, weights->n_out, x->ne[1], 1, 1, &source, 1, product_node,
                          GGML_N_TASKS_MAX, node.get());
}

} // namespace quire
