#include "graph/cpu_nodes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "core/large_pages.h"
#include "core/poison.h"

namespace quire {
namespace {

// Work of less than a few microseconds is not worth waking another thread for.
constexpr int64_t grain_floats = 8192;
constexpr int64_t alone_bytes = 96 << 10;
constexpr int64_t alone_multiplications = 96 << 10;

int grain(int64_t row_floats) {
    return static_cast<int>(std::max<int64_t>(1, grain_floats / std::max<int64_t>(1, row_floats)));
}

int64_t n_floats(const CpuValue &value) { return value.row_bytes / static_cast<int64_t>(sizeof(float)); }

// Scratch of a thread.
float *scratch(int64_t n) {
    static thread_local AlignedMemory memory;
    return reinterpret_cast<float *>(memory.at_least(static_cast<size_t>(n) * sizeof(float)));
}

} // namespace

void EmbedNode::run(const CpuRun &run) {
    const int64_t n = table_->n_in;
    const auto *ids = ids_ == nullptr ? run.batch.tokens.data() : reinterpret_cast<const int32_t *>(ids_->data);
    run.team.for_each(run.n(Lead::tokens), grain(n),
                      [&](int row) { matrix_row(*table_, ids[row], out_->floats() + row * n); });
}

void RoundNode::run(const CpuRun &run) {
    const int64_t n = matrix_->n_in;
    const int n_rows = run.n(x_->lead);
    const RowForm form = matrix_->form(n_rows);
    const int64_t row_bytes = matrix_->x_row_bytes(form);
    const bool stays_floats = form == RowForm::floats;
    run.team.for_each(n_rows, grain(n), [&](int row) {
        const float *x = x_->floats() + row * n;
        uint8_t *to = out_->data + row * row_bytes;
        if (norm_) {
            float *normed = stays_floats ? reinterpret_cast<float *>(to) : scratch(n);
            row_kernels().rms_norm(x, norm_->weight, norm_->eps, normed, n);
            x = normed;
        }
        if (!stays_floats) round_row(*matrix_, form, x, to);
    });
}

void ProductNode::place() {
    for (const Part &part : parts_)
        product_.factors.push_back({part.matrix, part.x->data, part.bias, part.out->floats()});
    if (residual_ != nullptr) product_.residual = residual_->floats();
    if (maxima_ != nullptr) product_.maxima = maxima_->floats();
}

void ProductNode::run(const CpuRun &run) {
    product_.n_rows = product_.form_rows = run.n(lead_);
    if (product_.n_rows == 0) return;
    const bool alone = product_cost_bytes(product_) < alone_bytes;
    const ProductItems items(product_, alone ? 1 : run.team.n_workers());
    run.team.for_each(items.size(), alone ? items.size() : 1, [&](int item) { items.run(item); });
}

void NormNode::run(const CpuRun &run) {
    const int64_t n = n_floats(*x_);
    run.team.for_each(run.n(x_->lead), grain(n), [&](int row) {
        for (int64_t i = row * n; i < (row + 1) * n; i += norm_.n)
            row_kernels().rms_norm(x_->floats() + i, norm_.weight, norm_.eps, out_->floats() + i, norm_.n);
    });
}

RotationTableNode::RotationTableNode(const RopeSpec &spec, CpuValue *out)
    : spec_(spec), magnitude_(spec.attn_factor), out_(out) {
    const double n = spec.n_dims, base = spec.freq_base;
    const auto *factors = spec.factors ? reinterpret_cast<const float *>(spec.factors->tensor.data()) : nullptr;
    // The pair that turns `rotations` times within the original context.
    auto pair_of = [&](double rotations) {
        return n * std::log(spec.n_ctx_orig / (rotations * 2 * std::numbers::pi)) / (2 * std::log(base));
    };
    double low = 0, high = 0;
    if (spec.ext_factor != 0) {
        low = std::max(0.0, std::floor(pair_of(spec.beta_fast)));
        high = std::min(n - 1, std::ceil(pair_of(spec.beta_slow)));
        magnitude_ *= 1.0F + 0.1F * std::log(1.0F / spec.freq_scale);
    }
    for (int i = 0; i < spec.n_dims / 2; ++i) {
        const double factor = factors == nullptr ? 1.0 : factors[i];
        frequencies_.push_back(static_cast<float>(std::pow(base, -2.0 * i / n) / factor));
        const double ramp = 1 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
        stretch_.push_back(static_cast<float>(ramp * spec.ext_factor));
    }
}

void RotationTableNode::fill(float position, float *row) const {
    float *cosines = row, *sines = row + spec_.n_dims;
    const int pairs = spec_.n_dims / 2;
    const bool half = spec_.layout == RopeLayout::half;
    for (int i = 0; i < pairs; ++i) {
        const auto at = static_cast<size_t>(i);
        const float full = position * frequencies_[at], scaled = full * spec_.freq_scale;
        const float angle = stretch_[at] == 0 ? scaled : scaled * (1 - stretch_[at]) + full * stretch_[at];
        const float cosine = std::cos(angle) * magnitude_, sine = std::sin(angle) * magnitude_;
        const int first = half ? i : 2 * i, second = half ? i + pairs : 2 * i + 1;
        cosines[first] = cosines[second] = cosine;
        sines[first] = -sine;
        sines[second] = sine;
    }
}

void RotationTableNode::run(const CpuRun &run) {
    const int64_t n = n_floats(*out_);
    run.team.for_each(run.n(Lead::tokens), grain(n * 16), [&](int row) {
        fill(static_cast<float>(run.batch.positions[static_cast<size_t>(row)]), out_->floats() + row * n);
    });
}

void HeadSteps::apply(int64_t row) const {
    const int64_t n = int64_t{n_head} * head_dim;
    const RowKernels &kernels = row_kernels();
    for (float *head = x->floats() + row * n, *end = head + n; head < end; head += head_dim) {
        if (norm) kernels.rms_norm(head, norm->weight, norm->eps, head, head_dim);
        if (!rotation) continue;
        const float *cosines = rotation->table->floats() + row * 2 * rotation->n_dims;
        const bool half = rotation->layout == RopeLayout::half;
        (half ? kernels.rotate_half : kernels.rotate_interleaved)(head, cosines, cosines + rotation->n_dims,
                                                                  rotation->n_dims);
    }
}

void HeadsNode::run(const CpuRun &run) {
    const int64_t n = n_floats(*x_);
    run.team.for_each(run.n(x_->lead), grain(2 * n), [&](int row) {
        if (x_ != steps_.x)
            std::memcpy(steps_.x->floats() + row * n, x_->floats() + row * n, static_cast<size_t>(x_->row_bytes));
        steps_.apply(row);
    });
}

void CacheNode::run(const CpuRun &run) {
    const int64_t k_floats = n_floats(*k_.x), v_floats = n_floats(*v_);
    // Tokens of a prompt go to the same blocks, which are written together.
    constexpr int most = 16;
    const AttentionBatch &attention = run.groups[group_];
    const int n_rows = attention.n_rows, each = n_rows >= 4 * most * run.team.n_workers() ? most : 1;
    run.team.for_each((n_rows + each - 1) / each, grain(4 * each * (n_floats(*q_.x) + k_floats)), [&](int item) {
        const int first = item * each, end = std::min(first + each, n_rows);
        for (int row = first; row < end; ++row) {
            q_.apply(row);
            k_.apply(row);
        }
        const KvRows rows{end - first, attention.slots + first, k_.x->floats() + first * k_floats,
                          v_->floats() + first * v_floats};
        kv_write_rows(shape_, rows, pools_.k_data(), pools_.v_data());
    });
    if (poisons()) kv_poison_rest(shape_, attention, pools_.k_data(), pools_.v_data());
}

void AttendNode::run(const CpuRun &run) {
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
    data.sinks = extras_.sinks;
    data.bias = extras_.bias;
    data.q = q_->floats();
    data.out = out_->floats();
    data.n_out_rows = attention.n_rows;
    std::atomic<int> next{0};
    auto attend = [&](int) { paged_attention(shape_, attention, data, next); };
    work < alone_multiplications ? attend(0) : run.team.run(attend);
}

void ElementNode::apply(const float *a, const float *b, float *out, int64_t n) const {
    const RowKernels &kernels = row_kernels();
    switch (step_.kind) {
    case ElementStep::Kind::add: return kernels.add(a, b, out, n);
    case ElementStep::Kind::multiply: return kernels.multiply(a, b, out, n);
    case ElementStep::Kind::scale: return kernels.scale(a, step_.number, out, n);
    case ElementStep::Kind::activate: return kernels.activate(step_.activation, a, out, n);
    case ElementStep::Kind::gate: return kernels.gate(step_.activation, a, b, out, n);
    case ElementStep::Kind::soft_cap: return kernels.soft_cap(a, step_.number, out, n);
    }
}

void ElementNode::run(const CpuRun &run) {
    const int64_t n = n_floats(*a_);
    run.team.for_each(run.n(a_->lead), grain(n), [&](int row) {
        apply(a_->floats() + row * n, b_ == nullptr ? nullptr : b_->floats() + row * n, out_->floats() + row * n, n);
    });
}

void SelectRowsNode::run(const CpuRun &run) {
    const int64_t n = n_floats(*x_);
    for (int row = 0; row < run.n(Lead::rows); ++row) {
        const int64_t from = run.batch.logit_rows[static_cast<size_t>(row)];
        std::memcpy(out_->floats() + row * n, x_->floats() + from * n, static_cast<size_t>(x_->row_bytes));
    }
}

} // namespace quire
