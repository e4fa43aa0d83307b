#include "graph/moe_node.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

namespace quire {

MoeNode::MoeNode(const MoeSpec &spec, ExpertMatrices experts, Values values)
    : spec_(spec), experts_(std::move(experts)), values_(values) {}

// The best n_used experts of a row, ties to the lower number.
void MoeNode::choose(int row) {
    const size_t n = experts_.gate.size(), used = static_cast<size_t>(spec_.n_used);
    float *scores = values_.scores->floats() + static_cast<size_t>(row) * n;
    if (spec_.gating == Gating::softmax) {
        const float largest = *std::max_element(scores, scores + n);
        float total = 0;
        for (size_t i = 0; i < n; ++i) total += scores[i] = std::exp(scores[i] - largest);
        for (size_t i = 0; i < n; ++i) scores[i] /= total;
    } else {
        for (size_t i = 0; i < n; ++i) scores[i] = 1.0F / (1.0F + std::exp(-scores[i]));
    }
    Choice *choices = choices_.data() + static_cast<size_t>(row) * used;
    float total = 0;
    for (size_t u = 0; u < used; ++u) {
        int best = -1;
        for (size_t i = 0; i < n; ++i) {
            const bool taken = std::any_of(choices, choices + u, [&](const Choice &c) { return c.expert == int(i); });
            if (!taken && (best < 0 || scores[i] > scores[best])) best = static_cast<int>(i);
        }
        choices[u] = {best, 0, scores[best]};
        total += scores[best];
    }
    for (size_t u = 0; u < used; ++u)
        choices[u].weight = (spec_.normalize ? choices[u].weight / total : choices[u].weight) * spec_.scale;
}

// By expert, then in the order of the rows.
void MoeNode::sort() {
    first_.assign(experts_.gate.size() + 1, 0);
    for (const Choice &choice : choices_) ++first_[static_cast<size_t>(choice.expert) + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    std::vector<int> next(first_.begin(), first_.end() - 1);
    place_token_.resize(choices_.size());
    for (size_t i = 0; i < choices_.size(); ++i) {
        choices_[i].place = next[static_cast<size_t>(choices_[i].expert)]++;
        place_token_[static_cast<size_t>(choices_[i].place)] = static_cast<int>(i) / spec_.n_used;
    }
}

namespace {

// Place `place` of rows in the form that the matrix wants for so many.
void to_form(const Matrix &matrix, int form_rows, const float *x, uint8_t *rows, int place) {
    const RowForm form = matrix.form(form_rows);
    uint8_t *to = rows + place * matrix.x_row_bytes(form);
    if (form != RowForm::floats) return round_row(matrix, form, x, to);
    std::copy(x, x + matrix.n_in, reinterpret_cast<float *>(to));
}

} // namespace

void MoeNode::gather(const CpuRun &run, const Matrix &matrix, CpuValue *to) const {
    run.team.for_each(first_.back(), 4, [&](int place) {
        const float *x = values_.x->floats() + place_token_[static_cast<size_t>(place)] * matrix.n_in;
        to_form(matrix, form_rows_, x, to->data, place);
    });
}

// Items of several products, one after the other.
void MoeNode::run_products(const CpuRun &run, std::vector<Product> &products) const {
    std::vector<ProductItems> items;
    std::vector<int> ends;
    for (const Product &product : products) {
        items.emplace_back(product, run.team.n_workers());
        ends.push_back((ends.empty() ? 0 : ends.back()) + items.back().size());
    }
    if (items.empty()) return;
    run.team.for_each(ends.back(), 1, [&](int item) {
        const auto at = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), item) - ends.begin());
        items[at].run(item - (at == 0 ? 0 : ends[at - 1]));
    });
}

void MoeNode::multiply(const CpuRun &run) {
    const Matrix &gate = *experts_.gate.front(), &down = *experts_.down.front();
    const int64_t ffn = gate.n_out, dim = down.n_out;
    auto rows = [&](const Matrix &matrix, const CpuValue *x, int64_t first) {
        return x->data + first * matrix.x_row_bytes(matrix.form(form_rows_));
    };
    std::vector<Product> gated, lowered;
    for (size_t e = 0; e < experts_.gate.size(); ++e) {
        const int64_t first = first_[e], n = first_[e + 1] - first;
        if (n == 0) continue;
        Product &both = gated.emplace_back();
        auto factor = [&](const Matrix *matrix, const CpuValue *x, const CpuValue *out) {
            return Factor{matrix, rows(*matrix, x, first), nullptr, out->floats() + first * ffn};
        };
        both.factors = {factor(experts_.gate[e], values_.for_gate, values_.gate),
                        factor(experts_.up[e], values_.for_up, values_.up)};
        both.n_rows = static_cast<int>(n);
        both.form_rows = form_rows_;
        both.activation = spec_.activation;
        Product &back = lowered.emplace_back();
        back.factors = {{experts_.down[e], rows(*experts_.down[e], values_.rounded, first), nullptr,
                         values_.down->floats() + first * dim}};
        back.n_rows = static_cast<int>(n);
        back.form_rows = form_rows_;
    }
    run_products(run, gated);
    run.team.for_each(first_.back(), 4, [&](int place) {
        to_form(down, form_rows_, values_.gate->floats() + place * ffn, values_.rounded->data, place);
    });
    run_products(run, lowered);
}

// Best first: a fixed order.
void MoeNode::combine(int row) const {
    const int64_t dim = experts_.down.front()->n_out;
    float *out = values_.out->floats() + row * dim;
    const Choice *choices = choices_.data() + static_cast<size_t>(row) * static_cast<size_t>(spec_.n_used);
    std::fill(out, out + dim, 0.0F);
    for (int u = 0; u < spec_.n_used; ++u)
        row_kernels().add_scaled(values_.down->floats() + choices[u].place * dim, choices[u].weight, out, dim);
}

void MoeNode::run(const CpuRun &run) {
    const int n_rows = run.n(values_.x->lead);
    if (n_rows == 0) return;
    choices_.resize(static_cast<size_t>(n_rows) * static_cast<size_t>(spec_.n_used));
    run.team.for_each(n_rows, 8, [&](int row) { choose(row); });
    sort();
    // All experts' rows in one form: that of an expert's usual number of them.
    form_rows_ = first_.back() / static_cast<int>(experts_.gate.size());
    gather(run, *experts_.gate.front(), values_.for_gate);
    if (values_.for_up != values_.for_gate) gather(run, *experts_.up.front(), values_.for_up);
    multiply(run);
    run.team.for_each(n_rows, 4, [&](int row) { combine(row); });
}

} // namespace quire
