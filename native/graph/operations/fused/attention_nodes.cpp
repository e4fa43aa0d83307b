#include "graph/operations/fused/attention_nodes.h"

#include <algorithm>
#include <atomic>

#include "core/error.h"
#include "core/poison.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

class CacheNode : public CpuNode {
  public:
    CacheNode(const AttentionPlace &place, HeadSteps q, HeadSteps k, CpuValue *v)
        : group_(static_cast<size_t>(place.group)), shape_(place.shape), pools_(place.pools), q_(q), k_(k), v_(v) {}
    void run(const CpuRun &run) override;

  private:
    size_t group_;
    AttentionShape shape_;
    AttentionPools pools_;
    HeadSteps q_, k_;
    CpuValue *v_; // null where V is in K
};

void CacheNode::run(const CpuRun &run) {
    const int64_t q_floats = q_.x == nullptr ? 0 : q_.x->n_floats();
    const int64_t k_floats = k_.x->n_floats(), v_floats = v_ == nullptr ? 0 : v_->n_floats();
    // Tokens of a prompt go to the same blocks, which are written together.
    constexpr int most = 16;
    const AttentionBatch &attention = run.groups[group_];
    const int n_rows = attention.n_rows, each = n_rows >= 4 * most * run.team.n_workers() ? most : 1;
    const int grain = rows_together(4 * each * (q_floats + k_floats));
    run.team.for_each((n_rows + each - 1) / each, grain, [&](int item) {
        const int first = item * each, end = std::min(first + each, n_rows);
        for (int row = first; row < end; ++row) {
            if (q_.x != nullptr) q_.apply(run.kernels.rows(), row);
            k_.apply(run.kernels.rows(), row);
        }
        const KvRows rows{end - first, attention.slots + first, k_.x->floats() + first * k_floats,
                          v_ == nullptr ? nullptr : v_->floats() + first * v_floats};
        kv_write_rows(run.kernels, shape_, rows, pools_.k_data(), pools_.v_data());
    });
    if (poisons()) kv_poison_rest(shape_, attention, pools_.k_data(), pools_.v_data());
}

class AttendNode : public CpuNode {
  public:
    AttendNode(const AttentionPlace &place, CpuValue *q, CpuValue *out)
        : group_(static_cast<size_t>(place.group)), shape_(place.shape), pools_(place.pools), sinks_(place.sinks),
          bias_(place.bias), picked_(place.picked), picked_heads_(place.picked_heads), q_(q), out_(out) {}
    void run(const CpuRun &run) override;

  private:
    PickedBlocks picked_blocks(const AttentionBatch &batch);

    size_t group_;
    AttentionShape shape_;
    AttentionPools pools_;
    const float *sinks_;
    DistanceBias bias_;
    CpuValue *picked_;
    int picked_heads_;
    CpuValue *q_, *out_;
    std::vector<int32_t> blocks_; // where blocks are picked: the rows' tables
};

// The picked blocks (kernels/attention/block_choice.h), as blocks of the group's pool.
PickedBlocks AttendNode::picked_blocks(const AttentionBatch &batch) {
    const int64_t n_row = picked_->n_floats(), n = n_row / picked_heads_;
    blocks_.resize(static_cast<size_t>(batch.n_rows * n_row));
    for (int32_t s = 0; s < batch.n_sequences; ++s) {
        const int32_t *table = batch.tables + batch.table_begin[s];
        for (int64_t at = batch.row_begin[s] * n_row; at < batch.row_begin[s + 1] * n_row; at += n) {
            const float *from = picked_->floats() + at;
            int32_t *to = blocks_.data() + at;
            to[0] = static_cast<int32_t>(from[0]);
            for (int i = 1; i <= (to[0] + kv_block_tokens - 1) / kv_block_tokens; ++i)
                to[i] = table[static_cast<int32_t>(from[i])];
        }
    }
    return {blocks_.data(), n, picked_heads_};
}

void AttendNode::run(const CpuRun &run) {
    constexpr int64_t alone_multiplications = 96 << 10; // fewer are not worth waking another thread for
    const AttentionBatch &attention = run.groups[group_];
    int64_t work = 0;
    for (int s = 0; s < attention.n_sequences; ++s) {
        const int64_t rows = attention.row_begin[s + 1] - attention.row_begin[s];
        work += rows * attention.n_kv[s];
    }
    work *= int64_t{shape_.n_head} * (shape_.head_dim + shape_.v_head_dim);
    AttentionData data{};
    data.k_pool = pools_.k_data();
    data.v_pool = pools_.v_data();
    data.sinks = sinks_;
    data.bias = bias_;
    if (shape_.picked_tokens > 0)
        data.blocks = picked_blocks(attention);
    else if (picked_ != nullptr)
        data.picked = {picked_->floats(), picked_->n_floats() / picked_heads_, picked_heads_};
    data.q = q_->floats();
    data.out = out_->floats();
    data.n_out_rows = attention.n_rows;
    std::atomic<int> next{0};
    auto attend = [&](int) { paged_attention(run.kernels, shape_, attention, data, next); };
    work < alone_multiplications ? attend(0) : run.team.run(attend);
}

} // namespace

void expect_bias(const char *place, const WeightRef &bias, int64_t n_head) {
    if (!bias) return;
    const Shape &shape = bias->tensor.shape();
    if (shape.size() != 2 || shape[0] != n_head || shape[1] > (int64_t{1} << 24) || bias->tensor.dtype() != DType::f32)
        throw ShapeError(place, cat(bias->name, " is ", name(bias->tensor.dtype()), " ", to_string(shape),
                                    ": expected f32 [", n_head, ", n]"));
}

DistanceBias distance_bias(const WeightRef &bias) {
    if (!bias) return {};
    return {weight_floats(bias), static_cast<int>(bias->tensor.shape()[1])};
}

KvType kv_type(DType dtype) {
    switch (dtype) {
    case DType::f32: return KvType::f32;
    case DType::f16: return KvType::f16;
    case DType::bf16: return KvType::bf16;
    case DType::q8_0: return KvType::q8;
    case DType::q5_1: return KvType::q5_1;
    case DType::q4_0: return KvType::q4_0;
    default:
        throw UnsupportedError("attend",
                               cat("the cache is ", name(dtype), ": expected f32, f16, bf16, q8_0, q5_1 or q4_0"));
    }
}

void add_attention(CpuLowering &lowering, int i, const AttentionPlace &place) {
    CpuProgram &program = lowering.program();
    program.add_attention(place.group, place.shape);
    const HeadSteps q = head_steps(lowering, lowering.input(i, 0));
    CpuValue *out = lowering.new_value(i);
    auto with_own = [&](std::vector<CpuValue *> used) {
        if (place.pools.own_k != nullptr) used.insert(used.end(), {place.pools.own_k, place.pools.own_v});
        return used;
    };
    std::vector<CpuValue *> used = q.used();
    const size_t n_inputs = lowering.n_inputs(i) - (place.picked == nullptr ? 0 : 1);
    if (n_inputs == 1) { // K and V are there already
        if (q.norm || q.rotation) program.add(std::make_unique<HeadsNode>(q.x, q), used);
    } else {
        const HeadSteps k = head_steps(lowering, lowering.input(i, 1));
        CpuValue *v = place.shape.v_in_k ? nullptr : lowering.value(lowering.input(i, 2));
        for (CpuValue *each : k.used()) used.push_back(each);
        if (v != nullptr) used.push_back(v);
        program.add(std::make_unique<CacheNode>(place, q, k, v), with_own(used));
    }
    std::vector<CpuValue *> attended = with_own({q.x, out});
    if (place.picked != nullptr) attended.push_back(place.picked);
    program.add(std::make_unique<AttendNode>(place, q.x, out), attended);
}

void add_key_rows(CpuLowering &lowering, const AttentionPlace &place, CpuValue *k) {
    const HeadSteps keys{k, place.shape.n_kv_head, place.shape.head_dim, std::nullopt, std::nullopt};
    lowering.program().add(std::make_unique<CacheNode>(place, HeadSteps{}, keys, nullptr), {k});
}

} // namespace quire
