#include "graph/lower_stock.h"

#include <cmath>

#include "core/error.h"
#include "graph/primitive.h"
#include "graph/stock_parts.h"

namespace quire {
namespace {

ggml_tensor *new_input(ggml_context *ctx, ggml_type type, int64_t n0, int64_t n1, const char *label) {
    ggml_tensor *tensor = n1 == 0 ? ggml_new_tensor_1d(ctx, type, n0) : ggml_new_tensor_2d(ctx, type, n0, n1);
    ggml_set_input(tensor);
    ggml_set_name(tensor, label);
    return tensor;
}

// Inputs that several layers share are made once per graph.
template <class Key>
ggml_tensor *shared_input(std::map<Key, ggml_tensor *> &inputs, Key which, ggml_tensor *(*make)(GraphBuild &, Key),
                          GraphBuild &build) {
    auto [place, fresh] = inputs.try_emplace(which, nullptr);
    if (fresh) place->second = make(build, which);
    return place->second;
}

ggml_tensor *make_write_rows(GraphBuild &build, GroupHeads of) {
    return new_input(build.context(), GGML_TYPE_I64, int64_t{build.out.key.n_tokens} * of.n_kv_head, 0, "write_rows");
}

ggml_tensor *make_gather_rows(GraphBuild &build, GroupHeads of) {
    return new_input(build.context(), GGML_TYPE_I32, int64_t{build.out.key.n_kv} * of.n_kv_head, 0, "gather_rows");
}

ggml_tensor *make_mask(GraphBuild &build, CacheLifetime) {
    return new_input(build.context(), GGML_TYPE_F32, build.out.key.n_kv, build.out.key.n_tokens, "mask");
}

ggml_tensor *make_row_mask(GraphBuild &build, int) {
    return new_input(build.context(), GGML_TYPE_F32, build.out.key.n_tokens, build.out.key.n_tokens, "row_mask");
}

ggml_tensor *make_bias_columns(GraphBuild &build, int) {
    return new_input(build.context(), GGML_TYPE_I32, build.out.key.n_kv, build.out.key.n_tokens, "bias_columns");
}

ggml_tensor *make_row_bias_columns(GraphBuild &build, int) {
    return new_input(build.context(), GGML_TYPE_I32, build.out.key.n_tokens, build.out.key.n_tokens, "bias_columns");
}

// Scores {n_kv, n_tokens, n_head} with what each head gives for distances; columns {n_kv, n_tokens}.
ggml_tensor *with_bias(ggml_context *ctx, ggml_tensor *scores, const WeightRef &bias, ggml_tensor *columns) {
    ggml_tensor *by_column = ggml_cont(ctx, ggml_transpose(ctx, bias->tensor.handle())); // {n_head, n}
    ggml_tensor *flat = ggml_reshape_1d(ctx, columns, ggml_nelements(columns));
    ggml_tensor *rows =
        ggml_reshape_3d(ctx, ggml_get_rows(ctx, by_column, flat), scores->ne[2], scores->ne[0], scores->ne[1]);
    return ggml_add(ctx, scores, ggml_cont(ctx, ggml_permute(ctx, rows, 2, 0, 1, 3)));
}

ggml_tensor *capped(ggml_context *ctx, ggml_tensor *x, float cap) {
    return ggml_scale(ctx, ggml_tanh(ctx, ggml_scale(ctx, x, 1.0F / cap)), cap);
}

ggml_tensor *rotated(ggml_context *ctx, ggml_tensor *x, ggml_tensor *positions, const RopeSpec &spec) {
    int mode = spec.layout == RopeLayout::half ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
    ggml_tensor *factors = spec.factors ? spec.factors->tensor.handle() : nullptr;
    return ggml_rope_ext(ctx, x, positions, factors, spec.n_dims, mode, spec.n_ctx_orig, spec.freq_base,
                         spec.freq_scale, spec.ext_factor, spec.attn_factor, spec.beta_fast, spec.beta_slow);
}

} // namespace

ggml_tensor *StockLowering::attend(GraphBuild &build, const op::Attend &operation, AttendInputs inputs) const {
    ggml_context *ctx = build.context();
    const CacheRows &spec = build.trace.cache[static_cast<size_t>(operation.layer)].rows.value();
    const int group = store_.layout().group_of(operation.layer).value();
    int64_t n_tokens = build.out.key.n_tokens, n_kv = build.out.key.n_kv;
    auto stored = [&](ggml_tensor *x, const Tensor &pool, int64_t head_dim) {
        ggml_tensor *rows = shared_input(build.out.inputs.write_rows, {group, spec.n_kv_head}, make_write_rows, build);
        return ggml_set_rows(ctx, pool.handle(),
                             ggml_reshape_2d(ctx, ggml_cont(ctx, x), head_dim, n_tokens * spec.n_kv_head), rows);
    };
    auto gathered = [&](ggml_tensor *pool, int64_t head_dim) {
        ggml_tensor *rows =
            shared_input(build.out.inputs.gather_rows, {group, spec.n_kv_head}, make_gather_rows, build);
        return ggml_reshape_3d(ctx, ggml_get_rows(ctx, pool, rows), head_dim, n_kv, spec.n_kv_head);
    };
    const KvStore::Rows &layer = store_.rows(operation.layer);
    if (inputs.k != nullptr)
        build.written[operation.layer] = {stored(inputs.k, layer.k, spec.head_dim),
                                          stored(inputs.v, layer.v, spec.v_head_dim)};
    const GraphBuild::Written &written = build.written.at(operation.layer);
    ggml_tensor *k = gathered(written.k, spec.head_dim), *v = gathered(written.v, spec.v_head_dim);
    ggml_tensor *scores = ggml_mul_mat(ctx, k, ggml_permute(ctx, inputs.q, 0, 2, 1, 3)); // [n_head, n_tokens, n_kv]
    float scale = operation.scale;
    if (operation.soft_cap > 0) {
        scores = capped(ctx, ggml_scale(ctx, scores, scale), operation.soft_cap);
        scale = 1.0F;
    }
    if (operation.bias) {
        const auto n = static_cast<int>(operation.bias->tensor.shape()[1]);
        scores = scale == 1.0F ? scores : ggml_scale(ctx, scores, scale);
        scale = 1.0F;
        scores = with_bias(ctx, scores, operation.bias,
                           shared_input(build.out.inputs.bias_columns, n, make_bias_columns, build));
    }
    ggml_tensor *mask = shared_input(build.out.inputs.masks, CacheLifetime{spec.window, spec.chunk}, make_mask, build);
    ggml_tensor *odds = ggml_soft_max_ext(ctx, scores, mask, scale, 0.0F);
    if (operation.sinks) ggml_soft_max_add_sinks(odds, operation.sinks->tensor.handle());
    ggml_tensor *mixed = ggml_mul_mat(ctx, ggml_cont(ctx, ggml_permute(ctx, v, 1, 0, 2, 3)), odds);
    return ggml_cont(ctx, ggml_permute(ctx, mixed, 0, 2, 1, 3));
}

ggml_tensor *StockLowering::attend_rows(GraphBuild &build, const op::AttendRows &operation, AttendInputs inputs) const {
    ggml_context *ctx = build.context();
    ggml_tensor *k = ggml_cont(ctx, ggml_permute(ctx, inputs.k, 0, 2, 1, 3)); // {head_dim, n_tokens, n_kv_head}
    ggml_tensor *v = ggml_cont(ctx, ggml_permute(ctx, inputs.v, 1, 2, 0, 3)); // {n_tokens, head_dim, n_kv_head}
    ggml_tensor *scores = ggml_mul_mat(ctx, k, ggml_permute(ctx, inputs.q, 0, 2, 1, 3));
    float scale = operation.scale;
    if (operation.soft_cap > 0) {
        scores = capped(ctx, ggml_scale(ctx, scores, scale), operation.soft_cap);
        scale = 1.0F;
    }
    if (operation.bias) {
        const auto n = static_cast<int>(operation.bias->tensor.shape()[1]);
        scores = scale == 1.0F ? scores : ggml_scale(ctx, scores, scale);
        scale = 1.0F;
        scores = with_bias(ctx, scores, operation.bias,
                           shared_input(build.out.inputs.row_bias_columns, n, make_row_bias_columns, build));
    }
    ggml_tensor *mask = shared_input(build.out.inputs.row_masks, operation.window, make_row_mask, build);
    ggml_tensor *odds = ggml_soft_max_ext(ctx, scores, mask, scale, 0.0F);
    return ggml_cont(ctx, ggml_permute(ctx, ggml_mul_mat(ctx, v, odds), 0, 2, 1, 3));
}

ggml_tensor *StockLowering::lower_operation(GraphBuild &build, const Operation &operation) const {
    ggml_context *ctx = build.context();
    GraphInputs &in = build.out.inputs;
    auto input = [&](size_t i) { return build.values[static_cast<size_t>(operation.inputs[i])]; };
    int64_t lead = operation.shape.lead == Lead::tokens ? build.out.key.n_tokens : build.out.key.n_rows;

    struct Visitor {
        const StockLowering &self;
        GraphBuild &build;
        const Operation &operation;
        ggml_context *ctx;
        GraphInputs &in;
        decltype(input) &value;
        int64_t lead;

        ggml_tensor *operator()(const op::Tokens &) const {
            return in.tokens = new_input(ctx, GGML_TYPE_I32, lead, 0, "tokens");
        }
        ggml_tensor *operator()(const op::Positions &) const {
            return in.positions = new_input(ctx, GGML_TYPE_I32, lead, 0, "positions");
        }
        ggml_tensor *operator()(const op::LogitRows &) const {
            return in.logit_rows = new_input(ctx, GGML_TYPE_I32, lead, 0, "logit_rows");
        }
        ggml_tensor *operator()(const op::Embed &o) const {
            return ggml_get_rows(ctx, o.weight->tensor.handle(), value(0));
        }
        ggml_tensor *operator()(const op::Linear &o) const {
            ggml_tensor *y = ggml_mul_mat(ctx, o.weight->tensor.handle(), value(0));
            return o.bias ? ggml_add(ctx, y, o.bias->tensor.handle()) : y;
        }
        ggml_tensor *operator()(const op::RmsNorm &o) const {
            ggml_tensor *y = ggml_rms_norm(ctx, value(0), o.eps);
            return o.weight ? ggml_mul(ctx, y, o.weight->tensor.handle()) : y;
        }
        ggml_tensor *operator()(const op::Rope &o) const { return rotated(ctx, value(0), value(1), o.spec); }
        ggml_tensor *operator()(const op::Attend &o) const {
            if (operation.inputs.size() == 1) return self.attend(build, o, {value(0), nullptr, nullptr});
            return self.attend(build, o, {value(0), value(1), value(2)});
        }
        ggml_tensor *operator()(const op::AttendRows &o) const {
            return self.attend_rows(build, o, {value(0), value(1), value(2)});
        }
        ggml_tensor *operator()(const op::Glu &o) const { return stock_gate(ctx, value(0), value(1), o.activation); }
        ggml_tensor *operator()(const op::Activate &o) const { return stock_activation(ctx, value(0), o.activation); }
        ggml_tensor *operator()(const op::SoftCap &o) const { return capped(ctx, value(0), o.cap); }
        ggml_tensor *operator()(const op::SelectRows &) const { return ggml_get_rows(ctx, value(0), value(1)); }
        ggml_tensor *operator()(const op::Moe &o) const { return stock_mixture(ctx, value(0), value(1), o); }
        ggml_tensor *operator()(const op::Primitive &o) const {
            StockParts parts{ctx, {}, operation.shape, lead};
            if (o.spec->has_state()) {
                parts.store = &self.store_;
                if (in.sequences == nullptr)
                    in.sequences = new_input(ctx, GGML_TYPE_I32, 2, build.out.key.n_tokens + 1, "sequences");
                parts.sequences = in.sequences;
            }
            for (size_t i = 0; i < operation.inputs.size(); ++i) parts.inputs.push_back(value(i));
            return o.spec->lower(parts);
        }
        ggml_tensor *operator()(const op::Add &) const { return ggml_add(ctx, value(0), value(1)); }
        ggml_tensor *operator()(const op::Multiply &) const { return ggml_mul(ctx, value(0), value(1)); }
        ggml_tensor *operator()(const op::Scale &o) const { return ggml_scale(ctx, value(0), o.factor); }
        ggml_tensor *operator()(const op::Reshape &) const {
            const std::vector<int64_t> &rest = operation.shape.rest;
            if (rest.size() == 3) return ggml_reshape_4d(ctx, value(0), rest[2], rest[1], rest[0], lead);
            return rest.size() == 2 ? ggml_reshape_3d(ctx, value(0), rest[1], rest[0], lead)
                                    : ggml_reshape_2d(ctx, value(0), rest[0], lead);
        }
    };
    return std::visit(Visitor{*this, build, operation, ctx, in, input, lead}, operation.kind);
}

LoweredGraph StockLowering::lower(const Trace &trace, GraphKey key) const {
    // No operation lowers to more than about 40 tensors (a mixture: 12 and one or two per chosen expert).
    size_t n_tensors = 64;
    for (const Operation &operation : trace.operations) {
        const auto *moe = std::get_if<op::Moe>(&operation.kind);
        const bool attends = std::holds_alternative<op::Attend>(operation.kind) ||
                             std::holds_alternative<op::AttendRows>(operation.kind);
        n_tensors += moe != nullptr ? 40 + 2 * static_cast<size_t>(moe->spec.routing.n_used) : attends ? 40 : 4;
        if (const auto *primitive = std::get_if<op::Primitive>(&operation.kind))
            n_tensors += primitive->spec->n_tensors();
    }
    LoweredGraph out;
    out.key = key;
    ggml_init_params params{ggml_tensor_overhead() * n_tensors + ggml_graph_overhead_custom(n_tensors, false), nullptr,
                            true};
    out.context.reset(ggml_init(params));
    if (!out.context) throw CapacityError("lower", "a graph's records must fit in memory but do not");
    GraphBuild build{trace, out, {}};
    build.values.reserve(trace.operations.size());
    for (const Operation &operation : trace.operations) build.values.push_back(lower_operation(build, operation));
    out.output = build.values[static_cast<size_t>(trace.output)];
    ggml_set_output(out.output);
    ggml_set_name(out.output, "output");
    if (trace.hidden >= 0) {
        out.hidden = build.values[static_cast<size_t>(trace.hidden)];
        ggml_set_output(out.hidden); // so that nothing is put into its memory
    }
    out.graph = ggml_new_graph_custom(out.context.get(), n_tensors, false);
    ggml_build_forward_expand(out.graph, out.output);
    return out;
}

} // namespace quire
