#include "graph/tracer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/error.h"
#include "graph/primitive.h"

namespace quire {
namespace {

std::string shape_text(const TraceShape &shape) {
    std::string text = shape.lead == Lead::tokens ? "[tokens" : "[rows";
    for (int64_t dim : shape.rest) text += ", " + std::to_string(dim);
    return text + "]";
}

void expect_rank(const char *place, const char *what, const TraceTensor &x, size_t rest) {
    if (x.shape().rest.size() != rest) {
        throw ShapeError(place, cat(what, " must have ", rest + 1, " dimensions but is ", shape_text(x.shape())));
    }
}

void expect_weight(const char *place, const WeightRef &weight, const Shape &wanted) {
    if (weight->tensor.shape() != wanted) {
        throw ShapeError(
            place, cat(weight->name, " must be ", to_string(wanted), " but is ", to_string(weight->tensor.shape())));
    }
}

// Vectors (norms, biases, sinks, factors) enter elementwise operations, which want f32.
void expect_vector(const char *place, const WeightRef &weight, int64_t n) {
    expect_weight(place, weight, {n});
    if (weight->tensor.dtype() != DType::f32) {
        throw ShapeError(place, cat(weight->name, " must be f32 but is ", name(weight->tensor.dtype())));
    }
}

void expect_positive(const char *place, const char *what, double value) {
    if (!(value > 0) || !std::isfinite(value)) throw ShapeError(place, cat(what, " must be above 0 but is ", value));
}

} // namespace

namespace {
// Logits are a product, and perhaps capped or scaled.
int hidden_of(const std::vector<Operation> &operations, int output) {
    for (;;) {
        const Operation &operation = operations[static_cast<size_t>(output)];
        if (std::holds_alternative<op::Linear>(operation.kind)) return operation.inputs[0];
        if (!std::holds_alternative<op::SoftCap>(operation.kind) && !std::holds_alternative<op::Scale>(operation.kind))
            return -1;
        output = operation.inputs[0];
    }
}
} // namespace

const TraceShape &TraceTensor::shape() const { return tracer->operation(id).shape; }

Tracer::Tracer(std::vector<CacheSpec> cache) : cache_(std::move(cache)), written_(cache_.size(), false) {
    CacheLayout(cache_, DType::f32); // checks it
    for (const CacheSpec &spec : cache_) claimed_.emplace_back(spec.states.size(), false);
    operations_.push_back({op::Tokens{}, {}, {Lead::tokens, {}}});
    operations_.push_back({op::Positions{}, {}, {Lead::tokens, {}}});
    operations_.push_back({op::LogitRows{}, {}, {Lead::rows, {}}});
}

std::shared_ptr<Tracer> Tracer::make(std::vector<CacheSpec> cache) {
    return std::shared_ptr<Tracer>(new Tracer(std::move(cache)));
}

TraceTensor Tracer::record(OperationKind kind, const std::vector<TraceTensor> &inputs, TraceShape shape) {
    if (finished_) throw ShapeError("trace", "operations must come before the trace is finished");
    Operation operation{std::move(kind), {}, std::move(shape)};
    for (const TraceTensor &input : inputs) {
        if (input.tracer.get() != this)
            throw ShapeError("trace", "all values of an operation must come from one tracer");
        operation.inputs.push_back(input.id);
    }
    operations_.push_back(std::move(operation));
    return {shared_from_this(), static_cast<int>(operations_.size()) - 1};
}

const CacheRows &Tracer::rows_of(int layer) const {
    if (layer < 0 || static_cast<size_t>(layer) >= cache_.size()) {
        throw ShapeError("attend", cat("layer must be below ", cache_.size(), " but is ", layer));
    }
    const std::optional<CacheRows> &rows = cache_[static_cast<size_t>(layer)].rows;
    if (!rows) throw ShapeError("attend", cat("layer ", layer, " must keep rows of K and V but does not"));
    return *rows;
}

void Tracer::mark_written(int layer) {
    if (written_[static_cast<size_t>(layer)])
        throw ShapeError("attend", cat("K and V of layer ", layer, " must be written once but are again"));
    written_[static_cast<size_t>(layer)] = true;
}

void Tracer::claim_state(const char *place, int layer, int index, int64_t n) {
    if (layer < 0 || static_cast<size_t>(layer) >= cache_.size())
        throw ShapeError(place, cat("layer must be below ", cache_.size(), " but is ", layer));
    const std::vector<CacheState> &states = cache_[static_cast<size_t>(layer)].states;
    if (index < 0 || static_cast<size_t>(index) >= states.size())
        throw ShapeError(place,
                         cat("state must be one of the ", states.size(), " of layer ", layer, " but is ", index));
    const CacheState &state = states[static_cast<size_t>(index)];
    if (state.n != n)
        throw ShapeError(
            place, cat("state ", state.name, " of layer ", layer, " must have ", n, " numbers but has ", state.n));
    std::vector<bool>::reference claimed = claimed_[static_cast<size_t>(layer)][static_cast<size_t>(index)];
    if (claimed)
        throw ShapeError(
            place, cat("state ", state.name, " of layer ", layer, " must belong to one operation but another has it"));
    claimed = true;
}

Trace Tracer::finish(const TraceTensor &output, OutputKind kind) {
    if (output.tracer.get() != this || finished_)
        throw ShapeError("trace", "a trace must be finished once, with its own value");
    const TraceShape &shape = output.shape();
    if (shape.lead != Lead::rows || shape.rest.size() != 1) {
        throw ShapeError("trace", cat(kind == OutputKind::logits ? "logits must be [rows, n_vocab] but are "
                                                                 : "vectors must be [rows, n] but are ",
                                      shape_text(shape)));
    }
    for (size_t layer = 0; layer < written_.size(); ++layer) {
        if (cache_[layer].rows && !written_[layer])
            throw ShapeError("trace", cat("every layer's rows must be written but layer ", layer, "'s are not"));
    }
    for (size_t layer = 0; layer < claimed_.size(); ++layer) {
        for (size_t i = 0; i < claimed_[layer].size(); ++i)
            if (!claimed_[layer][i])
                throw ShapeError("trace", cat("every state must belong to an operation but ",
                                              cache_[layer].states[i].name, " of layer ", layer, " does not"));
    }
    finished_ = true;
    Trace trace{cache_, operations_, output.id, kind, shape.rest[0], output.id};
    const bool both_ways = trace.attends_both_ways();
    if (both_ways && !std::ranges::all_of(cache_, [](const CacheSpec &spec) { return spec == CacheSpec{}; }))
        throw ShapeError("trace", "rows that attend to each other both ways must keep nothing, but a layer does");
    if (kind == OutputKind::logits) {
        trace.hidden = hidden_of(operations_, output.id);
        return trace;
    }
    for (const Operation &operation : operations_) {
        const auto *embed = std::get_if<op::Embed>(&operation.kind);
        if (embed != nullptr && operation.inputs[0] == 0) trace.n_vocab = embed->weight->tensor.shape()[0];
    }
    return trace;
}

bool Trace::attends_both_ways() const {
    return std::ranges::any_of(
        operations, [](const Operation &operation) { return std::holds_alternative<op::AttendRows>(operation.kind); });
}

TraceTensor add(const TraceTensor &a, const TraceTensor &b) {
    if (!(a.shape() == b.shape()))
        throw ShapeError("add",
                         cat("shapes must be equal but are ", shape_text(a.shape()), " and ", shape_text(b.shape())));
    return a.tracer->record(op::Add{}, {a, b}, a.shape());
}

TraceTensor multiply(const TraceTensor &a, const TraceTensor &b) {
    if (!(a.shape() == b.shape()))
        throw ShapeError("multiply",
                         cat("shapes must be equal but are ", shape_text(a.shape()), " and ", shape_text(b.shape())));
    return a.tracer->record(op::Multiply{}, {a, b}, a.shape());
}

TraceTensor scale(const TraceTensor &x, float factor) {
    if (!std::isfinite(factor)) throw ShapeError("scale", cat("the factor must be finite but is ", factor));
    return x.tracer->record(op::Scale{factor}, {x}, x.shape());
}

TraceTensor heads(const TraceTensor &x, int n_head) {
    expect_rank("heads", "x", x, 1);
    if (n_head < 1 || x.shape().rest[0] % n_head != 0) {
        throw ShapeError("heads", cat(x.shape().rest[0], " must be divisible by n_head but n_head is ", n_head));
    }
    return x.tracer->record(op::Reshape{}, {x}, {x.shape().lead, {n_head, x.shape().rest[0] / n_head}});
}

TraceTensor merge_heads(const TraceTensor &x) {
    expect_rank("merge_heads", "x", x, 2);
    return x.tracer->record(op::Reshape{}, {x}, {x.shape().lead, {x.shape().rest[0] * x.shape().rest[1]}});
}

TraceTensor embed(const TraceTensor &tokens, WeightRef weight) {
    expect_rank("embed", "tokens", tokens, 0);
    if (weight->tensor.shape().size() != 2) {
        throw ShapeError("embed",
                         cat(weight->name, " must be [n_vocab, dim] but is ", to_string(weight->tensor.shape())));
    }
    int64_t dim = weight->tensor.shape()[1];
    return tokens.tracer->record(op::Embed{std::move(weight)}, {tokens}, {Lead::tokens, {dim}});
}

TraceTensor linear(const TraceTensor &x, WeightRef weight, WeightRef bias) {
    expect_rank("linear", "x", x, 1);
    const Shape &shape = weight->tensor.shape();
    if (shape.size() != 2 || shape[1] != x.shape().rest[0]) {
        throw ShapeError("linear",
                         cat(weight->name, " must be [out, ", x.shape().rest[0], "] but is ", to_string(shape)));
    }
    int64_t n_out = shape[0];
    if (bias) expect_vector("linear", bias, n_out);
    return x.tracer->record(op::Linear{std::move(weight), std::move(bias)}, {x}, {x.shape().lead, {n_out}});
}

TraceTensor rms_norm(const TraceTensor &x, WeightRef weight, float eps) {
    if (x.shape().rest.empty()) throw ShapeError("rms_norm", "x must have 2 dimensions or more");
    expect_positive("rms_norm", "eps", eps);
    if (weight) expect_vector("rms_norm", weight, x.shape().rest.back());
    return x.tracer->record(op::RmsNorm{std::move(weight), eps}, {x}, x.shape());
}

TraceTensor rope(const TraceTensor &x, const TraceTensor &positions, RopeSpec spec) {
    expect_rank("rope", "x", x, 2);
    if (!std::holds_alternative<op::Positions>(positions.tracer->operation(positions.id).kind))
        throw ShapeError("rope", "positions must be the step's positions but are another value");
    int64_t head_dim = x.shape().rest[1];
    if (spec.n_dims < 2 || spec.n_dims % 2 != 0 || spec.n_dims > head_dim) {
        throw ShapeError("rope", cat("n_dims must be even and 2 to head_dim ", head_dim, " but is ", spec.n_dims));
    }
    expect_positive("rope", "freq_base", spec.freq_base);
    expect_positive("rope", "freq_scale", spec.freq_scale);
    if (spec.factors) expect_vector("rope", spec.factors, spec.n_dims / 2);
    return x.tracer->record(op::Rope{std::move(spec)}, {x, positions}, x.shape());
}

namespace {
void expect_bias(const char *place, const WeightRef &bias, int64_t n_head) {
    const Shape &shape = bias->tensor.shape();
    if (shape.size() != 2 || shape[0] != n_head || shape[1] > (int64_t{1} << 24) || bias->tensor.dtype() != DType::f32)
        throw ShapeError(place, cat(bias->name, " must be f32 [", n_head, ", n] but is ", name(bias->tensor.dtype()),
                                    " ", to_string(shape)));
}

void expect_attention(const op::Attend &parameters, int64_t n_head) {
    expect_positive("attend", "scale", parameters.scale);
    if (!(parameters.soft_cap >= 0))
        throw ShapeError("attend", cat("soft_cap must be 0 or above but is ", parameters.soft_cap));
    if (parameters.sinks) expect_vector("attend", parameters.sinks, n_head);
    if (parameters.bias) expect_bias("attend", parameters.bias, n_head);
}
} // namespace

TraceTensor attend_to_written(const TraceTensor &q, op::Attend parameters) {
    expect_rank("attend", "q", q, 2);
    const CacheRows &spec = q.tracer->rows_of(parameters.layer);
    const int64_t n_head = q.shape().rest[0];
    if (!q.tracer->is_written(parameters.layer))
        throw ShapeError("attend", cat("K and V of layer ", parameters.layer, " must be written before but are not"));
    if (q.shape().rest[1] != spec.head_dim || n_head % spec.n_kv_head != 0)
        throw ShapeError("attend", cat("q must fit the cache of layer ", parameters.layer, " (", spec.n_kv_head,
                                       " heads of ", spec.head_dim, ") but is ", shape_text(q.shape())));
    expect_attention(parameters, n_head);
    return q.tracer->record(std::move(parameters), {q}, {Lead::tokens, {n_head, spec.v_head_dim}});
}

TraceTensor attend_rows(const Heads &heads, op::AttendRows parameters) {
    const auto &[q, k, v] = heads;
    for (const TraceTensor *x : {&q, &k, &v}) expect_rank("attend_rows", "each of q, k, v", *x, 2);
    const int64_t n_head = q.shape().rest[0], n_kv_head = k.shape().rest[0];
    if (n_head % n_kv_head != 0 || v.shape().rest[0] != n_kv_head || q.shape().rest[1] != k.shape().rest[1] ||
        q.shape().lead != Lead::tokens)
        throw ShapeError("attend_rows",
                         cat("q, k, v must be heads of tokens that fit each other but are ", shape_text(q.shape()),
                             ", ", shape_text(k.shape()), ", ", shape_text(v.shape())));
    expect_positive("attend_rows", "scale", parameters.scale);
    if (!(parameters.soft_cap >= 0) || parameters.window < 0)
        throw ShapeError("attend_rows", cat("soft_cap and window must be 0 or above but are ", parameters.soft_cap,
                                            " and ", parameters.window));
    if (parameters.bias) {
        expect_bias("attend_rows", parameters.bias, n_head);
        if (parameters.bias->tensor.shape()[1] % 2 == 0)
            throw ShapeError("attend_rows", "the columns of bias must be odd but are even");
    }
    return q.tracer->record(std::move(parameters), {q, k, v}, {Lead::tokens, {n_head, v.shape().rest[1]}});
}

TraceTensor attend(const Heads &heads, op::Attend parameters) {
    const auto &[q, k, v] = heads;
    expect_rank("attend", "q", q, 2);
    expect_rank("attend", "k", k, 2);
    expect_rank("attend", "v", v, 2);
    const CacheRows &spec = q.tracer->rows_of(parameters.layer);
    std::vector<int64_t> wanted_k{spec.n_kv_head, spec.head_dim}, wanted_v{spec.n_kv_head, spec.v_head_dim};
    int64_t n_head = q.shape().rest[0];
    if (k.shape().rest != wanted_k || v.shape().rest != wanted_v || q.shape().rest[1] != spec.head_dim ||
        n_head % spec.n_kv_head != 0) {
        throw ShapeError("attend",
                         cat("q, k, v must fit the cache of layer ", parameters.layer, " (", spec.n_kv_head,
                             " heads of ", spec.head_dim, ", values of ", spec.v_head_dim, ") but are ",
                             shape_text(q.shape()), ", ", shape_text(k.shape()), ", ", shape_text(v.shape())));
    }
    expect_attention(parameters, n_head);
    q.tracer->mark_written(parameters.layer);
    return q.tracer->record(std::move(parameters), {q, k, v}, {Lead::tokens, {n_head, spec.v_head_dim}});
}

TraceTensor glu(const TraceTensor &gate, const TraceTensor &up, Activation activation) {
    if (!(gate.shape() == up.shape()))
        throw ShapeError("glu", cat("gate and up must be alike but are ", shape_text(gate.shape()), " and ",
                                    shape_text(up.shape())));
    return gate.tracer->record(op::Glu{activation}, {gate, up}, gate.shape());
}

TraceTensor activate(const TraceTensor &x, Activation activation) {
    return x.tracer->record(op::Activate{activation}, {x}, x.shape());
}

TraceTensor soft_cap(const TraceTensor &x, float cap) {
    expect_positive("soft_cap", "cap", cap);
    return x.tracer->record(op::SoftCap{cap}, {x}, x.shape());
}

TraceTensor select_rows(const TraceTensor &x, const TraceTensor &rows) {
    expect_rank("select_rows", "x", x, 1);
    expect_rank("select_rows", "rows", rows, 0);
    if (x.shape().lead != Lead::tokens || rows.shape().lead != Lead::rows) {
        throw ShapeError("select_rows", "x must be [tokens, n] and rows the step's logit rows");
    }
    return x.tracer->record(op::SelectRows{}, {x, rows}, {Lead::rows, x.shape().rest});
}

namespace {
void expect_routing(const Routing &routing, int64_t n_expert) {
    const bool has_groups = routing.n_group >= 1 && n_expert % routing.n_group == 0 && routing.n_group_used >= 1 &&
                            routing.n_group_used <= routing.n_group;
    if (!has_groups)
        throw ShapeError("moe", cat("groups must divide ", n_expert, " experts but ", routing.n_group_used, " of ",
                                    routing.n_group, " are to be used"));
    const int64_t in_group = n_expert / routing.n_group;
    if (routing.n_used < 1 || routing.n_used > in_group * routing.n_group_used)
        throw ShapeError("moe",
                         cat("n_used must be 1 to ", in_group * routing.n_group_used, " but is ", routing.n_used));
    if (routing.n_group > 1 && routing.group_score == GroupScore::two_largest && in_group < 2)
        throw ShapeError("moe", "groups that are ranked by two experts must have two but have one");
    expect_positive("moe", "scale", routing.scale);
}
} // namespace

TraceTensor moe(const TraceTensor &x, const TraceTensor &scores, op::Moe parameters) {
    expect_rank("moe", "x", x, 1);
    const int64_t dim = x.shape().rest[0];
    const Shape &up = parameters.up->tensor.shape();
    if (up.size() != 3)
        throw ShapeError("moe", cat(parameters.up->name, " must be [n_expert, ffn, dim] but is ", to_string(up)));
    const int64_t n_expert = up[0], ffn = up[1];
    if (!(scores.shape() == TraceShape{x.shape().lead, {n_expert}}))
        throw ShapeError(
            "moe", cat("scores must be one for each of ", n_expert, " experts but are ", shape_text(scores.shape())));
    if ((parameters.gate == nullptr) != (parameters.spec.unit == ExpertUnit::ungated))
        throw ShapeError("moe", "experts must have a gate, or be ungated");
    if (parameters.gate) expect_weight("moe", parameters.gate, {n_expert, ffn, dim});
    expect_weight("moe", parameters.up, {n_expert, ffn, dim});
    expect_weight("moe", parameters.down, {n_expert, dim, ffn});
    for (const WeightRef &each : {parameters.selection_bias, parameters.expert_scale})
        if (each) expect_vector("moe", each, n_expert);
    auto expect_biases = [&](const WeightRef &bias, int64_t n) {
        if (!bias) return;
        expect_weight("moe", bias, {n_expert, n});
        if (bias->tensor.dtype() != DType::f32) throw ShapeError("moe", cat(bias->name, " must be f32 but is not"));
    };
    expect_biases(parameters.gate_bias, ffn);
    expect_biases(parameters.up_bias, ffn);
    expect_biases(parameters.down_bias, dim);
    expect_routing(parameters.spec.routing, n_expert);
    return x.tracer->record(std::move(parameters), {x, scores}, x.shape());
}

TraceTensor record_primitive(std::shared_ptr<const Primitive> primitive, const std::vector<TraceTensor> &inputs,
                             TraceShape shape) {
    return inputs.front().tracer->record(op::Primitive{std::move(primitive)}, inputs, std::move(shape));
}

namespace {
struct Describe {
    std::string operator()(const op::Tokens &) const { return "tokens"; }
    std::string operator()(const op::Positions &) const { return "positions"; }
    std::string operator()(const op::LogitRows &) const { return "logit_rows"; }
    std::string operator()(const op::Embed &o) const { return "embed " + o.weight->name; }
    std::string operator()(const op::Linear &o) const {
        return "linear " + o.weight->name + (o.bias ? " + " + o.bias->name : "");
    }
    std::string operator()(const op::RmsNorm &o) const {
        return "rms_norm" + (o.weight ? " " + o.weight->name : std::string());
    }
    std::string operator()(const op::Rope &o) const { return cat("rope ", o.spec.n_dims, " base ", o.spec.freq_base); }
    std::string operator()(const op::Attend &o) const { return cat("attend layer ", o.layer); }
    std::string operator()(const op::AttendRows &) const { return "attend_rows"; }
    std::string operator()(const op::Glu &) const { return "glu"; }
    std::string operator()(const op::Activate &) const { return "activate"; }
    std::string operator()(const op::SoftCap &o) const { return cat("soft_cap ", o.cap); }
    std::string operator()(const op::SelectRows &) const { return "select_rows"; }
    std::string operator()(const op::Moe &o) const { return cat("moe ", o.up->name, " best ", o.spec.routing.n_used); }
    std::string operator()(const op::Add &) const { return "add"; }
    std::string operator()(const op::Multiply &) const { return "multiply"; }
    std::string operator()(const op::Scale &o) const { return cat("scale ", o.factor); }
    std::string operator()(const op::Reshape &) const { return "reshape"; }
    std::string operator()(const op::Primitive &o) const { return o.spec->describe(); }
};
} // namespace

std::string describe(const Operation &operation) {
    std::string text = std::visit(Describe{}, operation.kind) + " (";
    for (size_t i = 0; i < operation.inputs.size(); ++i) text += cat(i == 0 ? "%" : ", %", operation.inputs[i]);
    return text + ") -> " + shape_text(operation.shape);
}

} // namespace quire
