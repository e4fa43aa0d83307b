#include "graph/operations/fused/pick_blocks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "graph/operations/fused/attention_nodes.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/stock_attention.h"
#include "graph/trace/shape_checks.h"
#include "kernels/attention/block_choice.h"
#include "kernels/attention/index_scores.h"

namespace quire {
namespace {

// K or V in ggml's graphs: a row is a token.
struct TokenRows {
    explicit TokenRows(const Tensor &pool, int dim)
        : data(static_cast<const uint8_t *>(pool.data())), type(pool.handle()->type), token_bytes(pool.handle()->nb[1]),
          head_bytes(ggml_row_size(type, dim)), dim(dim) {}
    void read(int64_t slot, int head, float *to) const {
        const uint8_t *from = data + static_cast<size_t>(slot) * token_bytes + static_cast<size_t>(head) * head_bytes;
        if (type == GGML_TYPE_F32)
            std::memcpy(to, from, static_cast<size_t>(dim) * sizeof(float));
        else
            ggml_get_type_traits(type)->to_float(from, to, dim);
    }
    const uint8_t *data;
    ggml_type type;
    size_t token_bytes, head_bytes;
    int dim;
};

class StockKeys : public IndexKeys {
  public:
    StockKeys(const Tensor &pool, int dim) : rows_(pool, dim) {}
    void read(int32_t block, float *keys) const override {
        static thread_local std::vector<float> row;
        row.resize(static_cast<size_t>(rows_.dim));
        for (int t = 0; t < kv_block_tokens; ++t) {
            rows_.read(int64_t{block} * kv_block_tokens + t, 0, row.data());
            for (int d = 0; d < rows_.dim; ++d) keys[d * kv_block_tokens + t] = row[static_cast<size_t>(d)];
        }
    }

  private:
    TokenRows rows_;
};

class CpuKeys : public IndexKeys {
  public:
    CpuKeys(const Tensor &pool, DType type, int dim)
        : data_(static_cast<const uint8_t *>(pool.data())), type_(kv_type(type)), dim_(dim),
          block_bytes_(cache_head_bytes(type, dim, kv_block_tokens)) {}
    void read(int32_t block, float *keys) const override {
        read_block_keys(type_, data_ + static_cast<size_t>(block) * block_bytes_, dim_, keys);
    }

  private:
    const uint8_t *data_;
    KvType type_;
    int dim_;
    size_t block_bytes_;
};

class PickBlocksKernel : public PagedKernel {
  public:
    PickBlocksKernel(int group, const BlockChoice &choice, std::unique_ptr<const IndexKeys> keys)
        : group_(group), choice_(choice), keys_(std::move(keys)) {}
    void run(const PagedStep &step, int row, int) const override {
        const PagedStep::Place place = step.place(group_, row);
        pick_blocks(choice_, *keys_, place.table, place.position,
                    step.inputs[0] + int64_t{row} * choice_.n_head * choice_.dim,
                    step.out + int64_t{row} * choice_.n_head * choice_.n_numbers());
    }

  private:
    int group_;
    BlockChoice choice_;
    std::unique_ptr<const IndexKeys> keys_;
};

// Inputs: q, k.
class PickBlocks : public OperationKind {
  public:
    PickBlocks(int layer, const BlockChoice &choice) : layer_(layer), choice_(choice) {}
    std::string describe() const override { return cat("pick_blocks layer ", layer_); }
    size_t n_tensors() const override { return 16; }
    std::vector<int> cached_layers() const override { return {layer_}; }
    bool runs_on(Device device) const override { return device.kind() == DeviceKind::cpu; }
    ggml_tensor *lower(const StockParts &p) const override {
        const KvStore &store = p.graph->store;
        const int group = store.layout().group_of(layer_).value();
        const Tensor &pool = store.rows(layer_).k;
        ggml_tensor *k = stock_stored(*p.graph, group, p.inputs[1], pool);
        p.graph->written[layer_] = {k, k};
        auto keys = std::make_unique<StockKeys>(pool, choice_.dim);
        return lower_paged(p, std::make_shared<PickBlocksKernel>(group, choice_, std::move(keys)), {k});
    }
    void add_nodes(CpuLowering &lowering, int i) const override {
        const CacheLayout &layout = lowering.store().layout();
        const KvType type = kv_type(layout.types().k);
        if (is_low_bits(type))
            throw UnsupportedError("pick_blocks", cat("the cache is ", quire::name(layout.types().k),
                                                      ": expected f32, f16, bf16 or q8_0 for sparse attention"));
        const int group = layout.group_of(layer_).value();
        const Tensor &pool = lowering.store().rows(layer_).k;
        AttentionShape shape{choice_.n_head, 1, choice_.dim, choice_.dim, type, type, 1.0F};
        shape.v_in_k = true;
        lowering.program().add_written(group);
        add_key_rows(lowering, {group, shape, {pool.data(), nullptr, nullptr, nullptr}, nullptr, {}, nullptr},
                     lowering.value(lowering.input(i, 1)));
        auto keys = std::make_unique<CpuKeys>(pool, layout.types().k, choice_.dim);
        add_paged_nodes(lowering, i, {{}, std::make_shared<PickBlocksKernel>(group, choice_, std::move(keys))});
    }

  private:
    int layer_;
    BlockChoice choice_;
};

class AttendBlocksKernel : public PagedKernel {
  public:
    struct Shape {
        int n_head, n_kv_head, n_index_head;
        int64_t n_numbers; // for an index head (kernels/attention/block_choice.h)
    };
    AttendBlocksKernel(const PickedBlocksAttention &attention, const Shape &shape, int group, const TokenRows &k,
                       const TokenRows &v, size_t picked)
        : attention_(attention), shape_(shape), group_(group), k_(k), v_(v), picked_(picked) {}
    int n_parts() const override { return shape_.n_head; }
    void run(const PagedStep &step, int row, int head) const override {
        static thread_local std::vector<float> key, scores, values;
        const PagedStep::Place place = step.place(group_, row);
        const int index_head = head * shape_.n_index_head / shape_.n_head;
        const int kv_head = head * shape_.n_kv_head / shape_.n_head;
        const float *picked =
            step.inputs[picked_] + (int64_t{row} * shape_.n_index_head + index_head) * shape_.n_numbers;
        const float *q = step.inputs[0] + (int64_t{row} * shape_.n_head + head) * k_.dim;
        float *out = step.out + (int64_t{row} * shape_.n_head + head) * v_.dim;
        const int n = static_cast<int>(picked[0]);
        key.resize(static_cast<size_t>(k_.dim));
        values.resize(static_cast<size_t>(v_.dim));
        scores.resize(static_cast<size_t>(n));
        auto slot = [&](int t) {
            const auto block = static_cast<int32_t>(picked[1 + t / kv_block_tokens]);
            return int64_t{place.table[block]} * kv_block_tokens + t % kv_block_tokens;
        };
        float largest = attention_.sinks == nullptr ? -std::numeric_limits<float>::infinity() : attention_.sinks[head];
        for (int t = 0; t < n; ++t) {
            k_.read(slot(t), kv_head, key.data());
            float &score = scores[static_cast<size_t>(t)] = 0.0F;
            for (int d = 0; d < k_.dim; ++d) score += q[d] * key[static_cast<size_t>(d)];
            score *= attention_.scale;
            if (attention_.soft_cap > 0) score = attention_.soft_cap * std::tanh(score / attention_.soft_cap);
            largest = std::max(largest, score);
        }
        float total = attention_.sinks == nullptr ? 0.0F : std::exp(attention_.sinks[head] - largest);
        std::fill_n(out, v_.dim, 0.0F);
        for (int t = 0; t < n; ++t) {
            const float weight = std::exp(scores[static_cast<size_t>(t)] - largest);
            v_.read(slot(t), kv_head, values.data());
            total += weight;
            for (int d = 0; d < v_.dim; ++d) out[d] += weight * values[static_cast<size_t>(d)];
        }
        for (int d = 0; d < v_.dim; ++d) out[d] /= total;
    }

  private:
    PickedBlocksAttention attention_;
    Shape shape_;
    int group_;
    TokenRows k_, v_;
    size_t picked_;
};

} // namespace

ggml_tensor *stock_attend_blocks(const StockParts &p, const PickedBlocksAttention &attention) {
    const KvStore &store = p.graph->store;
    const CacheRows &kept = store.layout().layers()[static_cast<size_t>(attention.layer)].rows.value();
    const int group = store.layout().group_of(attention.layer).value();
    const KvStore::Rows &pools = store.rows(attention.layer);
    std::vector<ggml_tensor *> written;
    if (p.inputs.size() > 2) {
        written = {stock_stored(*p.graph, group, p.inputs[1], pools.k),
                   stock_stored(*p.graph, group, p.inputs[2], pools.v)};
        p.graph->written[attention.layer] = {written[0], written[1]};
    }
    const size_t picked = p.inputs.size() - 1;
    const AttendBlocksKernel::Shape shape{static_cast<int>(p.inputs[0]->ne[1]), kept.n_kv_head,
                                          static_cast<int>(p.inputs[picked]->ne[1]), p.inputs[picked]->ne[0]};
    return lower_paged(p,
                       std::make_shared<AttendBlocksKernel>(attention, shape, group, TokenRows(pools.k, kept.head_dim),
                                                            TokenRows(pools.v, kept.v_head_dim), picked),
                       written);
}

TraceTensor pick_blocks(const TraceTensor &q, const TraceTensor &k, const PickBlocksSpec &spec) {
    constexpr const char *place = "pick_blocks";
    for (const auto &[name, x] : {std::pair("q", &q), std::pair("k", &k)}) {
        expect_rank(place, name, *x, 2);
        expect_tokens(place, name, *x);
    }
    const CacheRows &kept = q.tracer->rows_of(spec.layer);
    const std::vector<int64_t> wanted{1, kept.head_dim};
    if (!kept.v_in_k || !kept.lifetime().keeps_all() || kept.every != 1 || k.shape().rest != wanted ||
        q.shape().rest[1] != kept.head_dim)
        throw ShapeError(place,
                         cat("q, k ", shape_text(q.shape()), ", ", shape_text(k.shape()), " do not fit layer ",
                             spec.layer, ": expected one latent row of ", kept.head_dim, " numbers for every token"));
    if (spec.block < kv_block_tokens || spec.block % kv_block_tokens != 0)
        throw ShapeError(place, cat("blocks of ", spec.block, " tokens: expected a multiple of ", kv_block_tokens));
    if (spec.n_local < 1 || spec.n_local > spec.n_picked || spec.n_picked > (1 << 24) / spec.block)
        throw ShapeError(place, cat("n_local ", spec.n_local, " and n_picked ", spec.n_picked,
                                    ": expected 1 or more, and at most ", (1 << 24) / spec.block, " blocks"));
    const BlockChoice choice{static_cast<int>(q.shape().rest[0]), kept.head_dim, spec.block, spec.n_picked,
                             spec.n_local};
    q.tracer->mark_written(spec.layer);
    return q.tracer->record(std::make_shared<PickBlocks>(spec.layer, choice), {q, k},
                            {Lead::tokens, {choice.n_head, choice.n_numbers()}});
}

} // namespace quire
