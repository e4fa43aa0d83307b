#include "graph/operations/fused/moe_node.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>

#include "graph/cpu/products.h"
#include "graph/trace/shape_checks.h"

namespace quire {

MoeNode::MoeNode(MoeWeights weights, const MoeSpec &spec, ExpertMatrices experts, Values values)
    : weights_(std::move(weights)), spec_(spec), routing_(spec.routing), experts_(std::move(experts)), values_(values) {
}

namespace {

void to_softmax(float *x, size_t n) {
    const float largest = *std::max_element(x, x + n);
    float total = 0;
    for (size_t i = 0; i < n; ++i) total += x[i] = std::exp(x[i] - largest);
    for (size_t i = 0; i < n; ++i) x[i] /= total;
}

// For a sparse mixer: the best expert's share of the exponentials left and near.  Experts chosen before are minus
// infinity.
float part_of_near(const std::vector<float> &scores, float best) {
    float total = 0;
    for (float x : scores)
        if (!((best - x) / std::max(std::abs(x), best) > 2 * mixer_jitter)) total += std::exp(x - best);
    return 1 / total;
}

} // namespace

// `odds`: what weights are made of; `ranked`: what experts are chosen by.
void MoeNode::rank(const float *scores, std::vector<float> &odds, std::vector<float> &ranked) const {
    const size_t n = n_all();
    odds.assign(scores, scores + n);
    if (routing_.gating == Gating::softmax) to_softmax(odds.data(), n);
    if (routing_.gating == Gating::sigmoid)
        for (float &x : odds) x = 1.0F / (1.0F + std::exp(-x));
    if (routing_.gating == Gating::sqrt_softplus)
        for (float &x : odds) x = std::sqrt(std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x))));
    ranked = odds;
    if (ranks_by_scores(weights_, routing_)) ranked.assign(scores, scores + n);
    if (const float *bias = weight_floats(weights_.selection_bias))
        for (size_t i = 0; i < n; ++i) ranked[i] += bias[i];
    if (routing_.n_group > 1) keep_best_groups(ranked);
}

void MoeNode::keep_best_groups(std::vector<float> &ranked) const {
    const auto n_group = static_cast<size_t>(routing_.n_group), in_group = ranked.size() / n_group;
    constexpr float none = -std::numeric_limits<float>::infinity();
    std::vector<std::pair<float, size_t>> groups;
    for (size_t g = 0; g < n_group; ++g) {
        float first = none, second = none;
        for (size_t i = g * in_group; i < (g + 1) * in_group; ++i) {
            second = std::max(second, std::min(first, ranked[i]));
            first = std::max(first, ranked[i]);
        }
        groups.emplace_back(routing_.group_score == GroupScore::largest ? first : first + second, g);
    }
    std::stable_sort(groups.begin(), groups.end(), [](const auto &a, const auto &b) { return a.first > b.first; });
    for (size_t g = static_cast<size_t>(routing_.n_group_used); g < n_group; ++g) {
        const auto begin = ranked.begin() + static_cast<std::ptrdiff_t>(groups[g].second * in_group);
        std::fill(begin, begin + static_cast<std::ptrdiff_t>(in_group), none);
    }
}

// The best n_used experts of a row, ties to the lower number.
void MoeNode::choose(int row) {
    static thread_local std::vector<float> odds, ranked, weights;
    const size_t n = n_all(), used = static_cast<size_t>(routing_.n_used);
    rank(values_.scores->floats() + static_cast<size_t>(row) * n, odds, ranked);
    Choice *choices = choices_.data() + static_cast<size_t>(row) * used;
    const float *chosen =
        values_.chosen == nullptr ? nullptr : values_.chosen->floats() + static_cast<size_t>(row) * used;
    weights.clear();
    for (size_t u = 0; u < used; ++u) {
        const auto best = chosen != nullptr
                              ? static_cast<size_t>(chosen[u])
                              : static_cast<size_t>(std::max_element(ranked.begin(), ranked.end()) - ranked.begin());
        choices[u] = {static_cast<int>(best), 0, 0.0F};
        weights.push_back(routing_.gating == Gating::sparse_mixer ? part_of_near(ranked, ranked[best]) : odds[best]);
        ranked[best] = -std::numeric_limits<float>::infinity();
    }
    if (routing_.gating == Gating::softmax_of_chosen) to_softmax(weights.data(), used);
    if (routing_.gating == Gating::sigmoid_of_chosen)
        for (float &weight : weights) weight = 1.0F / (1.0F + std::exp(-weight));
    const float total = std::accumulate(weights.begin(), weights.end(), 0.0F);
    const float *scale = weight_floats(weights_.expert_scale);
    for (size_t u = 0; u < used; ++u) {
        const float weight = (routing_.normalize ? weights[u] / total : weights[u]) * routing_.scale;
        choices[u].weight = scale == nullptr ? weight : weight * scale[choices[u].expert];
    }
}

// By expert, then in the order of the rows.
void MoeNode::sort() {
    first_.assign(experts_.up.size() + 1, 0);
    for (const Choice &choice : choices_)
        if (const auto expert = static_cast<size_t>(choice.expert); is_here(expert))
            ++first_[expert - first_here() + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    std::vector<int> next(first_.begin(), first_.end() - 1);
    place_choice_.resize(choices_.size());
    for (size_t i = 0; i < choices_.size(); ++i) {
        choices_[i].place = -1;
        const auto expert = static_cast<size_t>(choices_[i].expert);
        if (!is_here(expert)) continue;
        choices_[i].place = next[expert - first_here()]++;
        place_choice_[static_cast<size_t>(choices_[i].place)] = static_cast<int>(i);
    }
}

void MoeNode::gather(const CpuRun &run, const Matrix &matrix, CpuValue *to) const {
    run.team.for_each(first_.back(), 4, [&](int place) {
        const int choice = place_choice_[static_cast<size_t>(place)];
        const float *x = values_.x->floats() + choice / routing_.n_used * matrix.n_in;
        if (!spec_.weighs_input) return to_form(run.kernels, matrix, form_rows_, x, to->data, place);
        static thread_local std::vector<float> weighed;
        weighed.resize(static_cast<size_t>(matrix.n_in));
        run.kernels.rows().scale(x, choices_[static_cast<size_t>(choice)].weight, weighed.data(), matrix.n_in);
        to_form(run.kernels, matrix, form_rows_, weighed.data(), to->data, place);
    });
}

void MoeNode::multiply(const CpuRun &run) {
    const Matrix &down = *experts_.down.front();
    const int64_t ffn = experts_.up.front()->n_out, dim = down.n_out;
    const float *gate_bias = weight_floats(weights_.gate_bias), *up_bias = weight_floats(weights_.up_bias);
    const float *down_bias = weight_floats(weights_.down_bias);
    auto of_expert = [](const float *bias, size_t e, int64_t n) {
        return bias == nullptr ? nullptr : bias + static_cast<int64_t>(e) * n;
    };
    auto rows = [&](const Matrix &matrix, const CpuValue *x, int64_t first) {
        return x->data + first * matrix.x_row_bytes(matrix.form(form_rows_));
    };
    std::vector<Product> gated, lowered;
    for (size_t e = 0; e < experts_.up.size(); ++e) {
        const int64_t first = first_[e], n = first_[e + 1] - first;
        if (n == 0) continue;
        Product &both = gated.emplace_back();
        auto factor = [&](const Matrix *matrix, const CpuValue *x, const float *bias, const CpuValue *out) {
            return Factor{matrix, rows(*matrix, x, first), of_expert(bias, e, ffn), out->floats() + first * ffn};
        };
        if (!experts_.gate.empty())
            both.factors.push_back(factor(experts_.gate[e], values_.for_gate, gate_bias, values_.gate));
        both.factors.push_back(factor(experts_.up[e], values_.for_up, up_bias, values_.up));
        both.n_rows = static_cast<int>(n);
        both.form_rows = form_rows_;
        if (spec_.unit == ExpertUnit::gated) both.activation = spec_.activation;
        Product &back = lowered.emplace_back();
        back.factors = {{experts_.down[e], rows(*experts_.down[e], values_.rounded, first),
                         of_expert(down_bias, e, dim), values_.down->floats() + first * dim}};
        back.n_rows = static_cast<int>(n);
        back.form_rows = form_rows_;
    }
    run_products(run, gated);
    run.team.for_each(first_.back(), 4, [&](int place) {
        apply_unit(run.kernels.rows(), place);
        to_form(run.kernels, down, form_rows_, values_.gate->floats() + place * ffn, values_.rounded->data, place);
    });
    run_products(run, lowered);
}

// Everything that the products have not done already.
void MoeNode::apply_unit(const RowKernels &kernels, int64_t place) const {
    const int64_t n = experts_.up.front()->n_out;
    float *gate = values_.gate->floats() + place * n;
    if (spec_.unit == ExpertUnit::ungated) {
        kernels.activate(spec_.activation, gate, gate, n);
        if (spec_.is_squared) kernels.multiply(gate, gate, gate, n);
    } else if (spec_.unit == ExpertUnit::clipped) {
        kernels.activate(spec_.activation, gate, gate, n);
        const float *up = values_.up->floats() + place * n;
        for (int64_t i = 0; i < n; ++i)
            gate[i] = std::min(gate[i], spec_.limit) * std::clamp(up[i], -spec_.limit, spec_.limit);
    } else if (spec_.unit == ExpertUnit::clamped) {
        const float *up = values_.up->floats() + place * n;
        for (int64_t i = 0; i < n; ++i) gate[i] = std::min(gate[i], spec_.limit);
        kernels.activate(spec_.activation, gate, gate, n);
        for (int64_t i = 0; i < n; ++i) gate[i] *= std::clamp(up[i], -spec_.limit, spec_.limit);
    } else if (spec_.unit == ExpertUnit::tanh_capped) {
        const float *up = values_.up->floats() + place * n;
        auto capped = [](float x, float cap) { return cap * std::tanh(x / cap); };
        for (int64_t i = 0; i < n; ++i)
            gate[i] = capped(gate[i], spec_.alpha) / (1.0F + std::exp(-gate[i])) * capped(up[i], spec_.limit);
    } else if (spec_.unit == ExpertUnit::clamped_swiglu) {
        const float *up = values_.up->floats() + place * n;
        for (int64_t i = 0; i < n; ++i) {
            const float g = std::min(gate[i], spec_.limit);
            gate[i] = g / (1.0F + std::exp(-spec_.alpha * g)) * (std::clamp(up[i], -spec_.limit, spec_.limit) + 1.0F);
        }
    }
}

// Best first: a fixed order.
void MoeNode::combine(const RowKernels &kernels, int row) const {
    const int64_t dim = experts_.down.front()->n_out;
    float *out = values_.out->floats() + row * dim;
    const Choice *choices = choices_.data() + static_cast<size_t>(row) * static_cast<size_t>(routing_.n_used);
    std::fill(out, out + dim, 0.0F);
    for (int u = 0; u < routing_.n_used; ++u) {
        if (choices[u].place < 0) continue;
        kernels.add_scaled(values_.down->floats() + choices[u].place * dim,
                           spec_.weighs_input ? 1.0F : choices[u].weight, out, dim);
    }
}

void MoeNode::run(const CpuRun &run) {
    const int n_rows = run.n(values_.x->lead);
    if (n_rows == 0) return;
    choices_.resize(static_cast<size_t>(n_rows) * static_cast<size_t>(routing_.n_used));
    run.team.for_each(n_rows, 8, [&](int row) { choose(row); });
    sort();
    // All experts' rows in one form: that of an expert's usual number of them.
    form_rows_ = first_.back() / static_cast<int>(experts_.up.size());
    gather(run, *experts_.up.front(), values_.for_up);
    if (values_.for_gate != values_.for_up) gather(run, *experts_.gate.front(), values_.for_gate);
    multiply(run);
    run.team.for_each(n_rows, 4, [&](int row) { combine(run.kernels.rows(), row); });
}

} // namespace quire
