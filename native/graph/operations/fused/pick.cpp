// Sparse attention (DeepSeek-AI 2025): an indexer scores all earlier tokens with a few small heads and picks those that a
// row attends to.
#include "core/error.h"
#include "core/poison.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/operations/fused/attention_nodes.h"
#include "graph/operations/fused/paged_rows.h"
#include "graph/stock/stock_attention.h"
#include "graph/trace/shape_checks.h"
#include "kernels/attention/index_scores.h"

namespace quire {
namespace {

// Inputs: q, k, weights.
class Pick : public OperationKind {
  public:
    explicit Pick(PickSpec spec) : spec_(spec) {}
    std::string describe() const override { return cat("pick layer ", spec_.layer); }
    size_t n_tensors() const override { return 120; } // two parts
    std::vector<int> cached_layers() const override { return {spec_.layer}; }
    ggml_tensor *lower(const StockParts &parts) const override {
        return stock_pick(parts, {spec_.layer, spec_.n_picked});
    }
    void add_nodes(CpuLowering &lowering, int i) const override;

  private:
    PickSpec spec_;
};

class PickNode : public CpuNode {
  public:
    struct Values {
        CpuValue *q, *weights, *mask;
    };
    PickNode(int group, const AttentionShape &shape, int n_picked, const void *pool, Values values)
        : group_(static_cast<size_t>(group)), shape_(shape), n_picked_(n_picked), pool_(pool), values_(values),
          block_bytes_(cache_head_bytes(dtype_of(shape.k_type), shape.head_dim, kv_block_tokens)) {}
    void run(const CpuRun &run) override;

  private:
    static DType dtype_of(KvType type) {
        switch (type) {
        case KvType::f32: return DType::f32;
        case KvType::f16: return DType::f16;
        case KvType::bf16: return DType::bf16;
        default: return DType::q8_0;
        }
    }
    void pick(const AttentionBatch &batch, int32_t sequence, int begin, int end) const;

    size_t group_;
    AttentionShape shape_;
    int n_picked_;
    const void *pool_;
    Values values_;
    size_t block_bytes_;
};

// Rows [begin, end) of a sequence, counted from its first.
void PickNode::pick(const AttentionBatch &batch, int32_t sequence, int begin, int end) const {
    const int n_seen = batch.position(sequence, end - 1) + 1; // by the last row
    const int n_blocks = (n_seen + kv_block_tokens - 1) / kv_block_tokens, stride = n_blocks * kv_block_tokens;
    const int64_t first = batch.row_begin[sequence];
    static thread_local std::vector<float> keys, scores;
    if (n_seen > n_picked_) {
        keys.resize(static_cast<size_t>(shape_.head_dim) * kv_block_tokens);
        scores.resize(static_cast<size_t>(end - begin) * static_cast<size_t>(stride));
        const int32_t *table = batch.tables + batch.table_begin[sequence];
        for (int b = 0; b < n_blocks; ++b) {
            const auto *block = static_cast<const uint8_t *>(pool_) + static_cast<size_t>(table[b]) * block_bytes_;
            read_block_keys(shape_.k_type, block, shape_.head_dim, keys.data());
            for (int row = begin; row < end; ++row)
                score_block(values_.q->floats() + (first + row) * values_.q->n_floats(),
                            values_.weights->floats() + (first + row) * shape_.n_head, shape_.n_head, shape_.head_dim,
                            keys.data(), scores.data() + int64_t{row - begin} * stride + b * kv_block_tokens);
        }
    }
    for (int row = begin; row < end; ++row)
        pick_largest(scores.data() + int64_t{row - begin} * stride, batch.position(sequence, row) + 1, n_picked_,
                     values_.mask->floats() + (first + row) * values_.mask->n_floats());
}

void PickNode::run(const CpuRun &run) {
    constexpr int together = 8; // rows that read a block's keys in one go
    const AttentionBatch &batch = run.groups[group_];
    struct Item {
        int32_t sequence;
        int begin, end;
    };
    std::vector<Item> items;
    for (int32_t s = 0; s < batch.n_sequences; ++s) {
        const int n = batch.row_begin[s + 1] - batch.row_begin[s];
        for (int begin = 0; begin < n; begin += together) items.push_back({s, begin, std::min(begin + together, n)});
    }
    run.team.for_each(static_cast<int>(items.size()), 1, [&](int i) {
        const Item &item = items[static_cast<size_t>(i)];
        pick(batch, item.sequence, item.begin, item.end);
    });
}

void Pick::add_nodes(CpuLowering &lowering, int i) const {
    const CacheRows &kept = lowering.trace().cache[static_cast<size_t>(spec_.layer)].rows.value();
    const CacheLayout &layout = lowering.store().layout();
    const KvType type = kv_type(layout.types().k);
    if (is_low_bits(type))
        throw UnsupportedError("pick", cat("the cache is ", quire::name(layout.types().k),
                                           ": expected f32, f16, bf16 or q8_0 for models with sparse attention"));
    const int group = layout.group_of(spec_.layer).value();
    AttentionShape shape{
        static_cast<int>(lowering.rest(lowering.input(i))[0]), 1, kept.head_dim, kept.v_head_dim, type, type, 1.0F};
    shape.v_in_k = true;
    const KvStore::Rows &pools = lowering.store().rows(spec_.layer);
    lowering.program().add_written(group);
    const PickNode::Values values{lowering.value(lowering.input(i, 0)), lowering.value(lowering.input(i, 2)),
                                  lowering.new_value(i)};
    CpuValue *k = lowering.value(lowering.input(i, 1));
    add_key_rows(lowering, {group, shape, {pools.k.data(), nullptr, nullptr, nullptr}, nullptr, {}, nullptr}, k);
    lowering.program().add(std::make_unique<PickNode>(group, shape, spec_.n_picked, pools.k.data(), values),
                           {values.q, values.weights, values.mask});
}

} // namespace

TraceTensor pick(const TraceTensor &q, const TraceTensor &k, const TraceTensor &weights, PickSpec spec) {
    for (const auto &[name, x] : {std::pair("q", &q), std::pair("k", &k)}) {
        expect_rank("pick", name, *x, 2);
        expect_tokens("pick", name, *x);
    }
    expect_tokens("pick", "weights", weights);
    const CacheRows &kept = q.tracer->rows_of(spec.layer);
    const int64_t n_head = q.shape().rest[0];
    const std::vector<int64_t> wanted{1, kept.head_dim};
    if (!kept.v_in_k || !kept.lifetime().keeps_all() || k.shape().rest != wanted ||
        q.shape().rest[1] != kept.head_dim || weights.shape().rest != std::vector<int64_t>{n_head})
        throw ShapeError("pick", cat("q, k, weights ", shape_text(q.shape()), ", ", shape_text(k.shape()), ", ",
                                     shape_text(weights.shape()), " do not fit layer ", spec.layer,
                                     ": expected one latent row of ", kept.head_dim, " numbers for every token"));
    if (spec.n_picked < 1 || spec.n_ctx < 1)
        throw ShapeError("pick", cat("n_picked ", spec.n_picked, " and n_ctx ", spec.n_ctx, ": expected 1 or more"));
    q.tracer->mark_written(spec.layer);
    if (kept.every > 1) return pick_compressed(q, k, weights, spec);
    return q.tracer->record(std::make_shared<Pick>(spec), {q, k, weights}, {Lead::tokens, {spec.n_ctx}});
}

} // namespace quire
