#include "graph/stock_parts.h"

#include <limits>

#include "core/error.h"

namespace quire {

ggml_tensor *stock_activation(ggml_context *ctx, ggml_tensor *x, Activation activation) {
    switch (activation) {
    case Activation::silu: return ggml_silu(ctx, x);
    case Activation::gelu: return ggml_gelu_erf(ctx, x);
    case Activation::gelu_tanh: return ggml_gelu(ctx, x);
    case Activation::relu: return ggml_relu(ctx, x);
    }
    throw InternalError("lower", "an activation must be known");
}

ggml_tensor *stock_gate(ggml_context *ctx, ggml_tensor *gate, ggml_tensor *up, Activation activation) {
    switch (activation) {
    case Activation::silu: return ggml_swiglu_split(ctx, gate, up);
    case Activation::gelu: return ggml_geglu_erf_split(ctx, gate, up);
    case Activation::gelu_tanh: return ggml_geglu_split(ctx, gate, up);
    case Activation::relu: return ggml_reglu_split(ctx, gate, up);
    }
    throw InternalError("lower", "an activation must be known");
}

namespace {

// Numbers of the chosen experts and their weights, both [n_used, n_tokens].
struct Choice {
    ggml_tensor *experts, *weights;
};

// What is ranked, minus infinity outside of the best groups.
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

Choice choose(ggml_context *ctx, ggml_tensor *scores, const op::Moe &moe) {
    const Routing &routing = moe.spec.routing;
    const int64_t n_expert = scores->ne[0], n_tokens = scores->ne[1];
    ggml_tensor *odds = routing.gating == Gating::softmax   ? ggml_soft_max(ctx, scores)
                        : routing.gating == Gating::sigmoid ? ggml_sigmoid(ctx, scores)
                                                            : scores;
    ggml_tensor *ranked = moe.selection_bias ? ggml_add(ctx, odds, moe.selection_bias->tensor.handle()) : odds;
    if (routing.n_group > 1) ranked = in_best_groups(ctx, ranked, routing);
    ggml_tensor *experts = ggml_argsort_top_k(ctx, ranked, routing.n_used);
    auto of_chosen = [&](ggml_tensor *all) {
        ggml_tensor *rows = ggml_get_rows(ctx, all, experts);
        return ggml_reshape_2d(ctx, rows, routing.n_used, n_tokens);
    };
    ggml_tensor *weights = of_chosen(ggml_reshape_3d(ctx, odds, 1, n_expert, n_tokens));
    if (routing.gating == Gating::softmax_of_chosen) weights = ggml_soft_max(ctx, weights);
    if (routing.normalize) weights = ggml_div(ctx, weights, ggml_sum_rows(ctx, weights));
    if (routing.scale != 1.0F) weights = ggml_scale(ctx, weights, routing.scale);
    if (moe.expert_scale) {
        ggml_tensor *all = ggml_repeat_4d(ctx, ggml_reshape_3d(ctx, moe.expert_scale->tensor.handle(), 1, n_expert, 1),
                                          1, n_expert, n_tokens, 1);
        weights = ggml_mul(ctx, weights, of_chosen(all));
    }
    return {experts, weights};
}

} // namespace

ggml_tensor *stock_mixture(ggml_context *ctx, ggml_tensor *x, ggml_tensor *scores, const op::Moe &moe) {
    const int64_t dim = x->ne[0], n_tokens = x->ne[1], n_used = moe.spec.routing.n_used;
    auto [experts, weights] = choose(ctx, scores, moe);
    ggml_tensor *each_weight = ggml_reshape_3d(ctx, weights, 1, n_used, n_tokens);
    ggml_tensor *each = ggml_reshape_3d(ctx, x, dim, 1, n_tokens);
    if (moe.spec.weighs_input) each = ggml_mul(ctx, ggml_repeat_4d(ctx, each, dim, n_used, n_tokens, 1), each_weight);
    auto product = [&](const WeightRef &weight, const WeightRef &bias, ggml_tensor *of) {
        ggml_tensor *y = ggml_mul_mat_id(ctx, weight->tensor.handle(), of, experts);
        return bias ? ggml_add_id(ctx, y, bias->tensor.handle(), experts) : y;
    };
    ggml_tensor *up = product(moe.up, moe.up_bias, each);
    ggml_tensor *inner = nullptr;
    if (moe.spec.unit == ExpertUnit::ungated) {
        inner = stock_activation(ctx, up, moe.spec.activation);
        if (moe.spec.is_squared) inner = ggml_sqr(ctx, inner);
    } else {
        ggml_tensor *gate = product(moe.gate, moe.gate_bias, each);
        inner = moe.spec.unit == ExpertUnit::gated ? stock_gate(ctx, gate, up, moe.spec.activation)
                                                   : ggml_swiglu_oai(ctx, gate, up, moe.spec.alpha, moe.spec.limit);
    }
    ggml_tensor *down = product(moe.down, moe.down_bias, inner);
    if (!moe.spec.weighs_input) down = ggml_mul(ctx, down, each_weight);
    ggml_tensor *sum = nullptr;
    for (int64_t i = 0; i < n_used; ++i) {
        ggml_tensor *one = ggml_view_2d(ctx, down, dim, n_tokens, down->nb[2], static_cast<size_t>(i) * down->nb[1]);
        sum = sum == nullptr ? one : ggml_add(ctx, sum, one);
    }
    return n_used == 1 ? ggml_cont(ctx, sum) : sum;
}

} // namespace quire
