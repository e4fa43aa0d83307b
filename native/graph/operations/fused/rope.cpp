#include "graph/operations/fused/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/error.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/stock/lower_stock.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/shape_checks.h"

namespace quire {

int RopeSpec::axis_of(int pair) const {
    for (int axis : {1, 2}) {
        const int n = sections[static_cast<size_t>(axis)], first = axis == 1 ? sections[0] : sections[0] + sections[1];
        if (take_turns ? pair % 3 == axis && pair < 3 * n : pair >= first && pair < first + n) return axis;
    }
    return 0;
}

namespace {

void expect_sections(const RopeSpec &spec) {
    if (!spec.has_sections()) return;
    const auto [time, height, width] = spec.sections;
    if (time < 0 || height < 0 || width < 0 || time + height + width != spec.n_dims / 2 ||
        spec.layout != RopeLayout::half)
        throw ShapeError("rope", cat("sections are ", time, ", ", height, ", ", width, ": expected ", spec.n_dims / 2,
                                     " pairs together, in the layout half"));
}

} // namespace

TraceTensor rope(const TraceTensor &x, const TraceTensor &positions, RopeSpec spec) {
    expect_rank("rope", "x", x, 2);
    expect_tokens("rope", "x", x);
    if (positions.id != positions_operation) throw ShapeError("rope", "positions are not the step's positions");
    int64_t head_dim = x.shape().rest[1];
    if (spec.n_dims < 2 || spec.n_dims % 2 != 0 || spec.n_dims > head_dim)
        throw ShapeError("rope",
                         cat("n_dims is ", spec.n_dims, ": expected an even number from 2 to head_dim ", head_dim));
    expect_positive("rope", "freq_base", spec.freq_base);
    expect_positive("rope", "freq_scale", spec.freq_scale);
    expect_f32("rope", spec.factors, {spec.n_dims / 2});
    expect_sections(spec);
    if (spec.has_sections() && (spec.inverse || spec.behind != 0))
        throw ShapeError("rope", "sections cannot turn back, or by an earlier position");
    return x.tracer->record(std::make_shared<Rope>(std::move(spec)), {x, positions}, x.shape());
}

std::string Rope::describe() const { return cat("rope ", spec_.n_dims, " base ", spec_.freq_base); }

ggml_tensor *Rope::lower(const StockParts &p) const {
    const int mode = spec_.layout == RopeLayout::half ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    ggml_tensor *factors = spec_.factors ? p.weight(spec_.factors) : nullptr;
    if (spec_.has_sections()) {
        ggml_tensor *&axes = p.graph->out.inputs.axes;
        if (axes == nullptr) axes = p.graph->new_input(GGML_TYPE_I32, {4 * p.lead}, "axes");
        std::array<int, GGML_MROPE_SECTIONS> sections{spec_.sections[0], spec_.sections[1], spec_.sections[2], 0};
        return ggml_rope_multi(p.context, p.inputs[0], axes, factors, spec_.n_dims, sections.data(),
                               spec_.take_turns ? GGML_ROPE_TYPE_IMROPE : GGML_ROPE_TYPE_MROPE, spec_.n_ctx_orig,
                               spec_.freq_base, spec_.freq_scale, spec_.ext_factor, spec_.attn_factor, spec_.beta_fast,
                               spec_.beta_slow);
    }
    ggml_tensor *positions = p.inputs[1];
    if (spec_.behind != 0) {
        positions = ggml_cast(p.context, positions, GGML_TYPE_F32);
        positions = ggml_scale_bias(p.context, positions, 1.0F, -static_cast<float>(spec_.behind));
        positions = ggml_cast(p.context, positions, GGML_TYPE_I32);
    }
    const auto turn = spec_.inverse ? ggml_rope_ext_back : ggml_rope_ext;
    return turn(p.context, p.inputs[0], positions, factors, spec_.n_dims, mode, spec_.n_ctx_orig, spec_.freq_base,
                spec_.freq_scale, spec_.ext_factor, spec_.attn_factor, spec_.beta_fast, spec_.beta_slow);
}

namespace {

// Cosines and sines [n_dims], [n_dims] of each token's position, signs and order as RowKernels wants them.
class RotationTableNode : public CpuNode {
  public:
    RotationTableNode(const RopeSpec &spec, CpuValue *out);
    void run(const CpuRun &run) override {
        const int64_t n = out_->n_floats();
        run.team.for_each(run.n(Lead::tokens), rows_together(n * 16), [&](int row) {
            fill(places_of(run.batch, static_cast<size_t>(row), spec_.behind), out_->floats() + row * n);
        });
    }

  private:
    using Places = std::array<float, 3>; // by axis
    static Places places_of(const StepBatch &batch, size_t row, int behind);
    void fill(const Places &places, float *row) const;
    RopeSpec spec_;
    std::vector<size_t> axes_;                 // by pair
    std::vector<float> frequencies_, stretch_; // likewise; stretch_: the share that is not interpolated
    float magnitude_;
    CpuValue *out_;
};

RotationTableNode::RotationTableNode(const RopeSpec &spec, CpuValue *out)
    : spec_(spec), magnitude_(spec.attn_factor), out_(out) {
    const double n = spec.n_dims, base = spec.freq_base;
    const float *factors = weight_floats(spec.factors);
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
        axes_.push_back(static_cast<size_t>(spec.axis_of(i)));
        const double factor = factors == nullptr ? 1.0 : factors[i];
        frequencies_.push_back(static_cast<float>(std::pow(base, -2.0 * i / n) / factor));
        const double ramp = 1 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
        stretch_.push_back(static_cast<float>(ramp * spec.ext_factor));
    }
}

RotationTableNode::Places RotationTableNode::places_of(const StepBatch &batch, size_t row, int behind) {
    const size_t n = batch.positions.size();
    Places places{};
    for (size_t axis = 0; axis < places.size(); ++axis)
        places[axis] =
            static_cast<float>((batch.axes.empty() ? batch.positions[row] : batch.axes[axis * n + row]) - behind);
    return places;
}

void RotationTableNode::fill(const Places &places, float *row) const {
    float *cosines = row, *sines = row + spec_.n_dims;
    const int pairs = spec_.n_dims / 2;
    const bool half = spec_.layout == RopeLayout::half;
    for (int i = 0; i < pairs; ++i) {
        const auto at = static_cast<size_t>(i);
        const float full = places[axes_[at]] * frequencies_[at], scaled = full * spec_.freq_scale;
        const float angle = stretch_[at] == 0 ? scaled : scaled * (1 - stretch_[at]) + full * stretch_[at];
        const float cosine = std::cos(angle) * magnitude_, sine = std::sin(spec_.inverse ? -angle : angle) * magnitude_;
        const int first = half ? i : 2 * i, second = half ? i + pairs : 2 * i + 1;
        cosines[first] = cosines[second] = cosine;
        sines[first] = -sine;
        sines[second] = sine;
    }
}

} // namespace

Rotation Rope::rotation(CpuLowering &lowering) const {
    for (const auto &[known, table] : lowering.rotation_tables)
        if (known == spec_) return {table, spec_.n_dims, spec_.layout};
    CpuValue *table = lowering.program().floats(Lead::tokens, 2 * int64_t{spec_.n_dims});
    lowering.program().add(std::make_unique<RotationTableNode>(spec_, table), {table});
    lowering.rotation_tables.emplace_back(spec_, table);
    return {table, spec_.n_dims, spec_.layout};
}

void Rope::add_nodes(CpuLowering &lowering, int i) const {
    CpuValue *x = lowering.value(lowering.input(i));
    if (lowering.is_head_step(i)) return lowering.set_value(i, x);
    const std::vector<int64_t> &rest = lowering.rest(i);
    CpuValue *out = lowering.new_value(i);
    const HeadSteps steps{out, static_cast<int>(rest[0]), static_cast<int>(rest[1]), std::nullopt, rotation(lowering)};
    lowering.program().add(std::make_unique<HeadsNode>(x, steps), {x, out, steps.rotation->table});
}

} // namespace quire
