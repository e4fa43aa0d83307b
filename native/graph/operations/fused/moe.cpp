// A mixture of experts (Shazeer et al. 2017; Fedus et al. 2021), every token through its best few units.
#include <cmath>
#include <limits>

#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/operations/fused/moe_node.h"
#include "graph/stock/expert_layers.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {
namespace {

// Inputs: x, the router's scores, and perhaps the experts that are chosen.
class Moe : public OperationKind {
  public:
    Moe(MoeWeights weights, MoeSpec spec) : weights_(std::move(weights)), spec_(spec) {}
    std::string describe() const override { return cat("moe ", weights_.up->name, " best ", spec_.routing.n_used); }
    std::vector<WeightRef> weights() const override {
        return without_null(
            {weights_.selection_bias, weights_.expert_scale, weights_.gate_bias, weights_.up_bias, weights_.down_bias});
    }
    std::vector<WeightRef> matrices() const override {
        return without_null({weights_.gate, weights_.up, weights_.down});
    }
    size_t n_tensors() const override {
        const size_t of_one = spec_.routing.gating == Gating::sparse_mixer ? 20 : 2;
        return 40 + of_one * static_cast<size_t>(spec_.routing.n_used);
    }
    ggml_tensor *lower(const StockParts &parts) const override;
    void add_nodes(CpuLowering &lowering, int i) const override;

  private:
    MoeWeights weights_;
    MoeSpec spec_;
};

// Numbers of the chosen experts, {n_used, n_tokens}, and their weights, {1, n_used, n_tokens}.
struct ExpertChoice {
    ggml_tensor *experts, *weights;
};

// The numbers that are ranked, minus infinity outside of the best groups.
ggml_tensor *in_best_groups(ggml_context *ctx, ggml_tensor *ranked, const Routing &routing) {
    const int64_t n_expert = ranked->ne[0], n_tokens = ranked->ne[1], in_group = n_expert / routing.n_group;
    ggml_tensor *groups = ggml_reshape_3d(ctx, ranked, in_group, routing.n_group, n_tokens);
    const int n_best = routing.group_score == GroupScore::largest ? 1 : 2;
    ggml_tensor *best = ggml_argsort_top_k(ctx, groups, n_best); // {n_best, n_group, n_tokens}
    ggml_tensor *values =
        ggml_get_rows(ctx, ggml_reshape_4d(ctx, groups, 1, in_group, routing.n_group, n_tokens), best);
    ggml_tensor *sums = ggml_sum_rows(ctx, ggml_reshape_3d(ctx, values, n_best, routing.n_group, n_tokens));
    ggml_tensor *chosen = ggml_argsort_top_k(ctx, ggml_reshape_2d(ctx, sums, routing.n_group, n_tokens),
                                             routing.n_group_used); // {n_group_used, n_tokens}
    ggml_tensor *kept = ggml_get_rows(ctx, groups, chosen); // {in_group, n_group_used, n_tokens}
    ggml_tensor *none = ggml_fill(ctx, groups, -std::numeric_limits<float>::infinity());
    return ggml_reshape_2d(ctx, ggml_set_rows(ctx, none, kept, chosen), n_expert, n_tokens);
}

// For a sparse mixer: each chosen expert's share of the exponentials left and near, {n_used, n_tokens}.
ggml_tensor *parts_of_near(ggml_context *ctx, ggml_tensor *scores, ggml_tensor *chosen) {
    ggml_tensor *parts = nullptr;
    for (int64_t u = 0; u < chosen->ne[0]; ++u) {
        ggml_tensor *best = ggml_cont(
            ctx, ggml_view_2d(ctx, chosen, 1, chosen->ne[1], chosen->nb[1], static_cast<size_t>(u) * chosen->nb[0]));
        ggml_tensor *below = ggml_neg(ctx, ggml_sub(ctx, scores, best)); // negative of those chosen before
        ggml_tensor *larger = ggml_add(ctx, ggml_relu(ctx, ggml_sub(ctx, ggml_abs(ctx, scores), best)), best);
        ggml_tensor *is_far =
            ggml_step(ctx, ggml_scale_bias(ctx, ggml_div(ctx, below, larger), 1.0F, -2 * mixer_jitter));
        ggml_tensor *each = ggml_exp(ctx, ggml_neg(ctx, ggml_relu(ctx, below)));
        each = ggml_mul(ctx, each, ggml_scale_bias(ctx, is_far, -1.0F, 1.0F));
        // Those chosen before count 1 each.
        ggml_tensor *total = ggml_scale_bias(ctx, ggml_sum_rows(ctx, each), 1.0F, -static_cast<float>(u));
        ggml_tensor *part = ggml_div(ctx, ggml_fill(ctx, total, 1.0F), total);
        parts = parts == nullptr ? part : ggml_concat(ctx, parts, part, 0);
    }
    return parts;
}

ExpertChoice choose(const StockParts &p, const MoeWeights &w, const Routing &routing) {
    ggml_context *ctx = p.context;
    ggml_tensor *scores = p.inputs[1];
    const int64_t n_expert = scores->ne[0], n_tokens = scores->ne[1];
    ggml_tensor *odds = routing.gating == Gating::softmax         ? ggml_soft_max(ctx, scores)
                        : routing.gating == Gating::sigmoid       ? ggml_sigmoid(ctx, scores)
                        : routing.gating == Gating::sqrt_softplus ? ggml_sqrt(ctx, ggml_softplus(ctx, scores))
                                                                  : scores;
    ggml_tensor *ranked = w.selection_bias ? ggml_add(ctx, odds, p.weight(w.selection_bias)) : odds;
    if (ranks_by_scores(w, routing)) ranked = scores;
    if (routing.n_group > 1) ranked = in_best_groups(ctx, ranked, routing);
    ggml_tensor *experts = p.inputs.size() > 2 ? ggml_cast(ctx, p.inputs[2], GGML_TYPE_I32)
                                               : ggml_argsort_top_k(ctx, ranked, routing.n_used);
    auto of_chosen = [&](ggml_tensor *all) {
        ggml_tensor *rows = ggml_get_rows(ctx, all, experts);
        return ggml_reshape_2d(ctx, rows, routing.n_used, n_tokens);
    };
    ggml_tensor *weights = of_chosen(ggml_reshape_3d(ctx, odds, 1, n_expert, n_tokens));
    if (routing.gating == Gating::softmax_of_chosen) weights = ggml_soft_max(ctx, weights);
    if (routing.gating == Gating::sigmoid_of_chosen) weights = ggml_sigmoid(ctx, weights);
    if (routing.gating == Gating::sparse_mixer) weights = parts_of_near(ctx, scores, weights);
    // CUDA fuses all of this where the sum is clamped: here by the smallest normal number, so that only sums of
    // nothing but underflow change.
    constexpr float smallest = std::numeric_limits<float>::min();
    if (routing.normalize)
        weights = ggml_div(ctx, weights, ggml_clamp(ctx, ggml_sum_rows(ctx, weights), smallest, INFINITY));
    weights = ggml_reshape_3d(ctx, weights, 1, routing.n_used, n_tokens);
    if (routing.scale != 1.0F) weights = ggml_scale(ctx, weights, routing.scale);
    if (w.expert_scale) {
        ggml_tensor *all = ggml_repeat_4d(ctx, ggml_reshape_3d(ctx, p.weight(w.expert_scale), 1, n_expert, 1), 1,
                                          n_expert, n_tokens, 1);
        weights = ggml_mul(ctx, weights, ggml_reshape_3d(ctx, of_chosen(all), 1, routing.n_used, n_tokens));
    }
    return {experts, weights};
}

} // namespace

ggml_tensor *Moe::lower(const StockParts &p) const {
    if (spec_.first_expert >= 0) throw UnsupportedError("moe", "a part of the experts needs Quire's own kernels");
    ggml_context *ctx = p.context;
    ggml_tensor *x = p.inputs[0];
    const int64_t dim = x->ne[0], n_tokens = x->ne[1], n_used = spec_.routing.n_used;
    auto [experts, weights] = choose(p, weights_, spec_.routing);
    if (p.graph != nullptr)
        ggml_build_forward_expand(p.graph->out.graph, weights); // before the products, with its choice
    if (ggml_tensor *layer = expert_layer(p, weights_, spec_, experts, weights)) return layer;
    ggml_tensor *each = ggml_reshape_3d(ctx, x, dim, 1, n_tokens);
    if (spec_.weighs_input) each = ggml_mul(ctx, ggml_repeat_4d(ctx, each, dim, n_used, n_tokens, 1), weights);
    auto product = [&](const WeightRef &weight, const WeightRef &bias, ggml_tensor *of) {
        ggml_tensor *y = ggml_mul_mat_id(ctx, p.weight(weight), p.read_by(weight, of, experts), experts);
        return bias ? ggml_add_id(ctx, y, p.weight(bias), experts) : y;
    };
    ggml_tensor *up = product(weights_.up, weights_.up_bias, each);
    ggml_tensor *inner = nullptr;
    if (spec_.unit == ExpertUnit::ungated) {
        inner = stock_activation(ctx, up, spec_.activation);
        if (spec_.is_squared) inner = ggml_sqr(ctx, inner);
    } else {
        ggml_tensor *gate = product(weights_.gate, weights_.gate_bias, each);
        if (spec_.unit == ExpertUnit::gated) inner = stock_gate(ctx, gate, up, spec_.activation);
        if (spec_.unit == ExpertUnit::clamped_swiglu) inner = ggml_swiglu_oai(ctx, gate, up, spec_.alpha, spec_.limit);
        if (spec_.unit == ExpertUnit::clamped)
            inner = stock_gate(ctx, ggml_clamp(ctx, gate, -INFINITY, spec_.limit),
                               ggml_clamp(ctx, up, -spec_.limit, spec_.limit), spec_.activation);
        if (spec_.unit == ExpertUnit::tanh_capped) {
            auto capped = [&](ggml_tensor *of, float cap) {
                return ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, of, 1.0F / cap)), cap);
            };
            inner = ggml_mul(ctx, ggml_mul(ctx, capped(gate, spec_.alpha), ggml_sigmoid(ctx, gate)),
                             capped(up, spec_.limit));
        }
        if (spec_.unit == ExpertUnit::clipped)
            inner =
                ggml_mul(ctx, ggml_clamp(ctx, stock_activation(ctx, gate, spec_.activation), -INFINITY, spec_.limit),
                         ggml_clamp(ctx, up, -spec_.limit, spec_.limit));
    }
    ggml_tensor *down = product(weights_.down, weights_.down_bias, inner);
    if (!spec_.weighs_input) down = ggml_mul(ctx, down, weights);
    ggml_tensor *sum = nullptr;
    for (int64_t i = 0; i < n_used; ++i) {
        ggml_tensor *one = ggml_view_2d(ctx, down, dim, n_tokens, down->nb[2], static_cast<size_t>(i) * down->nb[1]);
        sum = sum == nullptr ? one : ggml_add(ctx, sum, one);
    }
    return n_used == 1 ? ggml_cont(ctx, sum) : sum;
}

void Moe::add_nodes(CpuLowering &lowering, int i) const {
    CpuMatrices &matrices = lowering.matrices();
    const ExpertMatrices experts{weights_.gate ? matrices.experts(weights_.gate) : std::vector<const Matrix *>{},
                                 matrices.experts(weights_.up), matrices.experts(weights_.down)};
    const Matrix *up = experts.up.front(), *down = experts.down.front();
    const int64_t used = spec_.routing.n_used, float_bytes = sizeof(float);
    auto rows = [&](int64_t row_bytes) { return lowering.program().value(lowering.lead(i), row_bytes, used); };
    MoeNode::Values v{};
    v.x = lowering.value(lowering.input(i));
    v.scores = lowering.value(lowering.input(i, 1));
    if (lowering.n_inputs(i) > 2) v.chosen = lowering.value(lowering.input(i, 2));
    v.for_up = rows(up->x_row_bytes());
    v.up = v.gate = rows(up->n_out * float_bytes);
    v.for_gate = v.for_up;
    if (!experts.gate.empty()) {
        if (!up->reads_as(*experts.gate.front())) v.for_gate = rows(experts.gate.front()->x_row_bytes());
        v.gate = rows(up->n_out * float_bytes);
    }
    v.rounded = rows(down->x_row_bytes());
    v.down = rows(down->n_out * float_bytes);
    v.out = lowering.new_value(i);
    std::vector<CpuValue *> values{v.x, v.scores, v.for_gate, v.for_up, v.gate, v.up, v.rounded, v.down, v.out};
    if (v.chosen != nullptr) values.push_back(v.chosen);
    lowering.program().add(std::make_unique<MoeNode>(weights_, spec_, experts, v), values);
}

namespace {

void expect_routing(const Routing &routing, int64_t n_expert) {
    const bool has_groups = routing.n_group >= 1 && n_expert % routing.n_group == 0 && routing.n_group_used >= 1 &&
                            routing.n_group_used <= routing.n_group;
    if (!has_groups)
        throw ShapeError("moe", cat("cannot use ", routing.n_group_used, " of ", routing.n_group, " groups of ",
                                    n_expert, " experts"));
    const int64_t in_group = n_expert / routing.n_group;
    if (routing.n_used < 1 || routing.n_used > in_group * routing.n_group_used)
        throw ShapeError("moe", cat("n_used is ", routing.n_used, ": expected 1 to ", in_group * routing.n_group_used));
    if (routing.n_group > 1 && routing.gating == Gating::sparse_mixer)
        throw ShapeError("moe", cat("a sparse mixer has ", routing.n_group, " groups: expected 1"));
    if (routing.n_group > 1 && routing.group_score == GroupScore::two_largest && in_group < 2)
        throw ShapeError("moe", "groups of one expert cannot be ranked by two");
    expect_positive("moe", "scale", routing.scale);
}

void expect_experts(const MoeWeights &weights, const MoeSpec &spec, int64_t dim, int64_t n_all) {
    const Shape &up = weights.up->tensor.shape();
    const int64_t n_expert = up[0], ffn = up[1];
    if (spec.first_expert >= 0 && spec.first_expert + n_expert > n_all)
        throw ShapeError("moe", cat(n_expert, " experts from number ", spec.first_expert, " on: there are ", n_all));
    if (!(spec.limit > 0)) throw ShapeError("moe", cat("limit is ", spec.limit, ": expected a value above 0"));
    if (!(spec.alpha > 0)) throw ShapeError("moe", cat("alpha is ", spec.alpha, ": expected a value above 0"));
    if ((weights.gate == nullptr) != (spec.unit == ExpertUnit::ungated))
        throw ShapeError("moe", "the gate does not match the unit: ungated experts have none, others need one");
    if (weights.gate) expect_weight("moe", weights.gate, {n_expert, ffn, dim});
    expect_weight("moe", weights.up, {n_expert, ffn, dim});
    expect_weight("moe", weights.down, {n_expert, dim, ffn});
    expect_f32("moe", weights.selection_bias, {n_all});
    if (weights.selection_bias && spec.routing.gating == Gating::sparse_mixer)
        throw ShapeError("moe", "a sparse mixer cannot have a selection bias");
    expect_f32("moe", weights.expert_scale, {n_all});
    expect_f32("moe", weights.gate_bias, {n_expert, ffn});
    expect_f32("moe", weights.up_bias, {n_expert, ffn});
    expect_f32("moe", weights.down_bias, {n_expert, dim});
}

} // namespace

TraceTensor moe(const TraceTensor &x, const TraceTensor &scores, MoeWeights weights, MoeSpec spec,
                const std::optional<TraceTensor> &chosen) {
    expect_rank("moe", "x", x, 1);
    const Shape &up = weights.up->tensor.shape();
    if (up.size() != 3)
        throw ShapeError("moe", cat(weights.up->name, " is ", to_string(up), ": expected [n_expert, ffn, dim]"));
    const int64_t n_all = spec.first_expert < 0 || scores.shape().rest.empty() ? up[0] : scores.shape().rest[0];
    if (!(scores.shape() == TraceShape{x.shape().lead, {n_all}}))
        throw ShapeError(
            "moe", cat("scores are ", shape_text(scores.shape()), ": expected one for each of ", up[0], " experts"));
    expect_experts(weights, spec, x.shape().rest[0], n_all);
    expect_routing(spec.routing, n_all);
    std::vector<TraceTensor> inputs{x, scores};
    if (chosen) {
        if (!(chosen->shape() == TraceShape{x.shape().lead, {spec.routing.n_used}}))
            throw ShapeError("moe", cat("chosen experts are ", shape_text(chosen->shape()), ": expected ",
                                        spec.routing.n_used, " for each token"));
        if (spec.routing.gating == Gating::sparse_mixer)
            throw ShapeError("moe", "a sparse mixer cannot have chosen experts");
        inputs.push_back(*chosen);
    }
    return x.tracer->record(std::make_shared<Moe>(std::move(weights), spec), inputs, x.shape());
}

} // namespace quire
