// Attention of a step's tokens to what a layer keeps, the step's own tokens included.
#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/operations/fused/attention_nodes.h"
#include "graph/operations/fused/pick_blocks.h"
#include "graph/stock/stock_attention.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

// Inputs: q, k, v; q and k, where the layer keeps V within K; or q alone, which attends to what another operation of
// the step has written to the layer, or the encoder, where the layer's rows are those of a source text.  Picked tokens
// come last.
class Attend : public OperationKind {
  public:
    explicit Attend(AttendSpec spec) : spec_(std::move(spec)), is_picked_(spec_.picked.has_value()) {
        if (is_picked_ && spec_.picked->shape().rest.size() == 2) {
            picking_heads_ = static_cast<int>(spec_.picked->shape().rest[0]);
            picked_tokens_ = static_cast<int>(spec_.picked->shape().rest[1] - 1) * kv_block_tokens;
        }
        spec_.picked.reset(); // an input
    }
    bool runs_on(Device device) const override { return picked_tokens_ == 0 || device.kind() == DeviceKind::cpu; }
    std::string describe() const override { return cat("attend layer ", spec_.layer); }
    size_t n_tensors() const override { return 100; } // two parts
    int attended_layer() const override { return spec_.layer; }
    ggml_tensor *lower(const StockParts &parts) const override;
    void prepare(CpuLowering &lowering, int i) const override;
    void add_nodes(CpuLowering &lowering, int i) const override;

  private:
    AttendSpec spec_;
    bool is_picked_;
    int picking_heads_ = 1, picked_tokens_ = 0; // where blocks are picked
};

ggml_tensor *Attend::lower(const StockParts &p) const {
    if (picked_tokens_ > 0)
        return stock_attend_blocks(p, {spec_.layer, spec_.scale, spec_.soft_cap, weight_floats(spec_.sinks)});
    const StockAttention attention{spec_.layer, spec_.scale, spec_.soft_cap, spec_.sinks, spec_.bias, is_picked_};
    return stock_attention(p, attention);
}

void Attend::prepare(CpuLowering &lowering, int i) const {
    mark_head_steps(lowering, i, 0);
    if (lowering.n_inputs(i) > (is_picked_ ? 2 : 1)) mark_head_steps(lowering, i, 1);
}

void Attend::add_nodes(CpuLowering &lowering, int i) const {
    const CacheRows &kept = lowering.trace().cache[static_cast<size_t>(spec_.layer)].rows.value();
    const CacheLayout &layout = lowering.store().layout();
    const KvStore::Rows &pools = lowering.store().rows(spec_.layer);
    const int n_head = static_cast<int>(lowering.rest(lowering.input(i))[0]);
    const CacheTypes types = layout.types();
    AttentionShape shape{n_head,           kept.n_kv_head, kept.head_dim,  kept.v_head_dim, kv_type(types.k),
                         kv_type(types.v), spec_.scale,    spec_.soft_cap, kept.window,     kept.chunk};
    shape.v_in_k = kept.v_in_k;
    shape.both_ways = kept.of_source;
    shape.picked_tokens = picked_tokens_;
    add_attention(lowering, i,
                  {layout.group_of(spec_.layer).value(),
                   shape,
                   {pools.k.data(), pools.v.data(), nullptr, nullptr},
                   weight_floats(spec_.sinks),
                   distance_bias(spec_.bias),
                   is_picked_ ? lowering.value(lowering.input(i, lowering.n_inputs(i) - 1)) : nullptr,
                   picking_heads_});
}

void expect_spec(const AttendSpec &spec, int64_t n_head) {
    expect_positive("attend", "scale", spec.scale);
    expect_not_negative("attend", "soft_cap", spec.soft_cap);
    expect_f32("attend", spec.sinks, {n_head});
    expect_bias("attend", spec.bias, n_head);
    if (!spec.picked) return;
    if (spec.bias) throw ShapeError("attend", "picked tokens cannot have a bias by distance");
    const TraceTensor &picked = *spec.picked;
    const std::string by = picked.tracer->operation(picked.id).kind->name();
    if (by != "pick" && by != "pick_blocks")
        throw ShapeError("attend", "picked is not a result of pick or pick_blocks");
    if (by == "pick") return;
    const CacheRows &kept = picked.tracer->rows_of(spec.layer);
    if (kept.v_in_k || kept.of_source || !kept.lifetime().keeps_all() || kept.n_kv_head % picked.shape().rest[0] != 0)
        throw ShapeError("attend",
                         cat("layer ", spec.layer, " does not keep K and V of all tokens, in heads divisible by ",
                             picked.shape().rest[0], ", for which blocks are picked"));
}

// Records the operation; what was picked is its last input.
TraceTensor recorded(std::vector<TraceTensor> inputs, AttendSpec spec, int64_t n_head, int64_t v_head_dim) {
    if (spec.picked) inputs.push_back(*spec.picked);
    return inputs[0].tracer->record(std::make_shared<Attend>(std::move(spec)), inputs,
                                    {Lead::tokens, {n_head, v_head_dim}});
}

} // namespace

TraceTensor attend_to_written(const TraceTensor &q, AttendSpec spec) {
    expect_rank("attend", "q", q, 2);
    expect_tokens("attend", "q", q);
    const CacheRows &kept = q.tracer->rows_of(spec.layer);
    const int64_t n_head = q.shape().rest[0];
    if (kept.of_source && spec.bias) throw ShapeError("attend", "rows of a source text cannot have a bias by distance");
    if (!kept.of_source && !q.tracer->is_written(spec.layer))
        throw ShapeError("attend", cat("K and V of layer ", spec.layer, " are not written yet"));
    if (q.shape().rest[1] != kept.head_dim || n_head % kept.n_kv_head != 0)
        throw ShapeError("attend", cat("q ", shape_text(q.shape()), " does not fit the cache of layer ", spec.layer,
                                       ": ", kept.n_kv_head, " heads of ", kept.head_dim));
    expect_spec(spec, n_head);
    return recorded({q}, std::move(spec), n_head, kept.v_head_dim);
}

TraceTensor attend(const Heads &heads, AttendSpec spec) {
    const auto &[q, k, v] = heads;
    for (const auto &[name, x] : {std::pair("q", &q), std::pair("k", &k), std::pair("v", &v)}) {
        expect_rank("attend", name, *x, 2);
        expect_tokens("attend", name, *x);
    }
    const CacheRows &kept = q.tracer->rows_of(spec.layer);
    if (kept.v_in_k)
        throw ShapeError("attend", cat("layer ", spec.layer, " keeps values within its keys: use attend_latent"));
    if (kept.of_source)
        throw ShapeError("attend", cat("layer ", spec.layer, " keeps rows of a source, not the step's own"));
    const std::vector<int64_t> wanted_k{kept.n_kv_head, kept.head_dim}, wanted_v{kept.n_kv_head, kept.v_head_dim};
    const int64_t n_head = q.shape().rest[0];
    if (k.shape().rest != wanted_k || v.shape().rest != wanted_v || q.shape().rest[1] != kept.head_dim ||
        n_head % kept.n_kv_head != 0)
        throw ShapeError("attend", cat("q, k, v ", shape_text(q.shape()), ", ", shape_text(k.shape()), ", ",
                                       shape_text(v.shape()), " do not fit the cache of layer ", spec.layer, ": ",
                                       kept.n_kv_head, " heads of ", kept.head_dim, ", values of ", kept.v_head_dim));
    expect_spec(spec, n_head);
    q.tracer->mark_written(spec.layer);
    return recorded({q, k, v}, std::move(spec), n_head, kept.v_head_dim);
}

TraceTensor attend_latent(const TraceTensor &q, const TraceTensor &k, AttendSpec spec) {
    for (const auto &[name, x] : {std::pair("q", &q), std::pair("k", &k)}) {
        expect_rank("attend", name, *x, 2);
        expect_tokens("attend", name, *x);
    }
    const CacheRows &kept = q.tracer->rows_of(spec.layer);
    if (!kept.v_in_k)
        throw ShapeError("attend", cat("layer ", spec.layer, " keeps values in an array of their own: use attend"));
    const std::vector<int64_t> wanted{1, kept.head_dim};
    const int64_t n_head = q.shape().rest[0];
    if (k.shape().rest != wanted || q.shape().rest[1] != kept.head_dim)
        throw ShapeError("attend", cat("q and k ", shape_text(q.shape()), ", ", shape_text(k.shape()),
                                       " do not fit the rows of layer ", spec.layer, ": ", kept.head_dim, " numbers"));
    if (kept.every != 1)
        throw ShapeError("attend", cat("layer ", spec.layer, " keeps compressed rows: use attend_compressed"));
    expect_spec(spec, n_head);
    q.tracer->mark_written(spec.layer);
    return recorded({q, k}, std::move(spec), n_head, kept.v_head_dim);
}

} // namespace quire
