#include "graph/lower_cpu.h"

#include <map>
#include <optional>

#include "core/error.h"
#include "graph/cpu_nodes.h"
#include "graph/moe_node.h"
#include "graph/primitive_nodes.h"

namespace quire {
namespace {

const float *floats(const WeightRef &weight) {
    return weight ? reinterpret_cast<const float *>(weight->tensor.data()) : nullptr;
}

KvType kv_type(DType dtype) {
    switch (dtype) {
    case DType::f32: return KvType::f32;
    case DType::f16: return KvType::f16;
    case DType::bf16: return KvType::bf16;
    case DType::q8_0: return KvType::q8;
    default: throw UnsupportedError("attend", cat("the cache must be f32, f16, bf16 or q8_0 but is ", name(dtype)));
    }
}

int64_t size_of(const TraceShape &shape) {
    int64_t n = 1;
    for (int64_t dim : shape.rest) n *= dim;
    return n;
}

class CpuLowering {
  public:
    explicit CpuLowering(const CpuProgramInputs &inputs)
        : in_(inputs), operations_(inputs.trace.operations), matrices_(inputs.matrices), values_(operations_.size()),
          norms_(operations_.size()), done_(operations_.size(), false), head_steps_(operations_.size(), false),
          users_(operations_.size()) {
        for (size_t i = 0; i < operations_.size(); ++i)
            for (int input : operations_[i].inputs) users_[at(input)].push_back(static_cast<int>(i));
        users_[at(in_.trace.output)].push_back(-1);
        for (size_t i = 0; i < operations_.size(); ++i) {
            if (!std::holds_alternative<op::Attend>(operations_[i].kind) &&
                !std::holds_alternative<op::AttendRows>(operations_[i].kind))
                continue;
            for (size_t which = 0; which < std::min<size_t>(2, operations_[i].inputs.size()); ++which)
                mark_head_steps(static_cast<int>(i), which);
        }
    }

    CpuProgram lower() {
        for (size_t i = 0; i < operations_.size(); ++i)
            if (!done_[i]) std::visit([&](const auto &kind) { lower(static_cast<int>(i), kind); }, operations_[i].kind);
        show_hidden();
        program_.finish(value(in_.trace.output), in_.limits);
        return std::move(program_);
    }

  private:
    static size_t at(int i) { return static_cast<size_t>(i); }
    const Operation &operation(int i) const { return operations_[at(i)]; }
    template <class Kind> const Kind *as(int i) const { return std::get_if<Kind>(&operation(i).kind); }
    int input(int i, size_t which = 0) const { return operation(i).inputs[which]; }
    CpuValue *value(int i) const { return values_[at(i)]; }
    Lead lead(int i) const { return operation(i).shape.lead; }
    std::optional<int> only_user(int i) const {
        if (users_[at(i)].size() != 1 || users_[at(i)][0] < 0) return std::nullopt;
        return users_[at(i)][0];
    }
    CpuValue *new_value(int i) { return values_[at(i)] = program_.floats(lead(i), size_of(operation(i).shape)); }

    // Step inputs are read from the batch.
    void lower(int, const op::Tokens &) {}
    void lower(int, const op::Positions &) {}
    void lower(int, const op::LogitRows &) {}

    void lower(int i, const op::Embed &o) {
        CpuValue *out = new_value(i);
        if (as<op::Tokens>(input(i)) != nullptr) {
            program_.add(std::make_unique<EmbedNode>(matrices_.find(o.weight), nullptr, out), {out});
            return;
        }
        CpuValue *ids = id_value(input(i));
        program_.add(std::make_unique<EmbedNode>(matrices_.find(o.weight), ids, out), {ids, out});
    }

    // Ids as a value, for those who do not read them from the batch.
    CpuValue *id_value(int i) {
        if (value(i) != nullptr) return value(i);
        CpuValue *out = values_[at(i)] = program_.value(lead(i), sizeof(int32_t));
        const auto of = as<op::Tokens>(i) != nullptr ? IdsNode::Of::tokens : IdsNode::Of::positions;
        program_.add(std::make_unique<IdsNode>(of, out), {out});
        return out;
    }

    void lower(int i, const op::Primitive &o) {
        std::vector<CpuValue *> inputs;
        std::vector<StockNode::Input> shaped;
        for (int from : operation(i).inputs) {
            inputs.push_back(operation(from).shape.rest.empty() ? id_value(from) : value(from));
            shaped.push_back({inputs.back(), operation(from).shape});
        }
        CpuValue *out = new_value(i);
        std::vector<CpuValue *> used = inputs;
        used.push_back(out);
        if (auto node = o.spec->cpu_node({inputs, out, in_.store}))
            program_.add(std::move(node), used);
        else if (RowFunction function = o.spec->row_function())
            program_.add(std::make_unique<RowNode>(std::move(function), inputs, out), used);
        else {
            program_.note_stock_operation(o.spec->name());
            program_.add(std::make_unique<StockNode>(o.spec, std::move(shaped), out, operation(i).shape), used);
        }
    }

    void lower(int i, const op::Reshape &) { values_[at(i)] = value(input(i)); }

    // A norm that was left to the product is done for those who ask only.
    void show_hidden() {
        const int i = in_.trace.hidden;
        if (i < 0) return;
        CpuValue *x = value(i);
        if (!norms_[at(i)]) return program_.show_hidden(x, nullptr, nullptr);
        CpuValue *out = program_.floats(lead(i), size_of(operation(i).shape));
        program_.show_hidden(out, std::make_unique<NormNode>(x, *norms_[at(i)], out), x);
    }

    // Left to the products that read it, or to the attention whose heads it norms.
    void lower(int i, const op::RmsNorm &o) {
        const RowNorm norm{floats(o.weight), o.eps, operation(i).shape.rest.back()};
        bool only_products = operation(i).shape.rest.size() == 1;
        for (int user : users_[at(i)]) only_products = only_products && user >= 0 && as<op::Linear>(user) != nullptr;
        if (only_products) {
            norms_[at(i)] = norm;
            values_[at(i)] = value(input(i));
            return;
        }
        if (head_steps_[at(i)]) {
            values_[at(i)] = value(input(i));
            return;
        }
        CpuValue *x = value(input(i)), *out = new_value(i);
        program_.add(std::make_unique<NormNode>(x, norm, out), {x, out});
    }

    void lower(int i, const op::Rope &o) {
        if (head_steps_[at(i)]) {
            values_[at(i)] = value(input(i));
            return;
        }
        const auto &rest = operation(i).shape.rest;
        CpuValue *x = value(input(i)), *out = new_value(i);
        const HeadSteps steps{out, static_cast<int>(rest[0]), static_cast<int>(rest[1]), std::nullopt,
                              rotation(o.spec)};
        program_.add(std::make_unique<HeadsNode>(x, steps), {x, out, steps.rotation->table});
    }

    // Norm and rotation of the heads of queries or keys are done in place where attention begins, if nobody else reads what
    // they change and a product has made it.
    void mark_head_steps(int attend, size_t which) {
        int next = attend, i = input(attend, which);
        std::vector<int> steps;
        auto single = [&](int step) { return only_user(step) == next; };
        auto take = [&](int step) {
            steps.push_back(step);
            next = step;
            i = input(step);
        };
        if (as<op::Rope>(i) != nullptr && single(i)) take(i);
        if (as<op::RmsNorm>(i) != nullptr && single(i)) take(i);
        while (as<op::Reshape>(i) != nullptr && single(i)) {
            next = i;
            i = input(i);
        }
        if (as<op::Linear>(i) == nullptr || !single(i)) return;
        for (int step : steps) head_steps_[at(step)] = true;
    }

    HeadSteps head_steps(int i) {
        const auto &rest = operation(i).shape.rest;
        HeadSteps steps{value(i), static_cast<int>(rest[0]), static_cast<int>(rest[1]), std::nullopt, std::nullopt};
        if (const auto *rope = as<op::Rope>(i); rope != nullptr && head_steps_[at(i)]) {
            steps.rotation = rotation(rope->spec);
            i = input(i);
        }
        if (const auto *norm = as<op::RmsNorm>(i); norm != nullptr && head_steps_[at(i)])
            steps.norm = RowNorm{floats(norm->weight), norm->eps, rest[1]};
        return steps;
    }

    // One table per kind of rotation, for all layers.
    Rotation rotation(const RopeSpec &spec) {
        for (const auto &[known, table] : tables_) {
            if (known == spec) return {table, spec.n_dims, spec.layout};
        }
        CpuValue *table = program_.floats(Lead::tokens, 2 * int64_t{spec.n_dims});
        program_.add(std::make_unique<RotationTableNode>(spec, table), {table});
        tables_.emplace_back(spec, table);
        return {table, spec.n_dims, spec.layout};
    }

    void lower(int i, const op::Attend &o) {
        const CacheRows &spec = in_.trace.cache[at(o.layer)].rows.value();
        const KvStore::Rows &layer = in_.store.rows(o.layer);
        const int group = in_.store.layout().group_of(o.layer).value();
        const int n_head = static_cast<int>(operation(input(i)).shape.rest[0]);
        const AttentionShape shape{
            n_head,  spec.n_kv_head, spec.head_dim, spec.v_head_dim, kv_type(in_.store.layout().dtype()),
            o.scale, o.soft_cap,     spec.window,   spec.chunk};
        add_attention(i, group, shape, {layer.k.data(), layer.v.data(), nullptr, nullptr},
                      {floats(o.sinks), distance_bias(o.bias)});
    }

    // K and V are written to blocks of the step's own.
    void lower(int i, const op::AttendRows &o) {
        const auto &q = operation(input(i, 0)).shape.rest, &k = operation(input(i, 1)).shape.rest;
        const auto n_kv_head = static_cast<int>(k[0]), head_dim = static_cast<int>(k[1]);
        const auto v_head_dim = static_cast<int>(operation(input(i, 2)).shape.rest[1]);
        const DType cached = in_.store.layout().dtype(), dtype = cached == DType::q8_0 ? DType::f16 : cached;
        AttentionShape shape{static_cast<int>(q[0]), n_kv_head, head_dim,   v_head_dim,
                             kv_type(dtype),         o.scale,   o.soft_cap, o.window};
        shape.both_ways = true;
        auto blocks = [&](int dim) {
            const auto bytes = static_cast<int64_t>(cache_head_bytes(dtype, dim, kv_block_tokens));
            return program_.block_value(n_kv_head * bytes);
        };
        const int group = static_cast<int>(in_.store.layout().groups().size()); // after the cache's
        add_attention(i, group, shape, {nullptr, nullptr, blocks(head_dim), blocks(v_head_dim)},
                      {nullptr, distance_bias(o.bias)});
    }

    DistanceBias distance_bias(const WeightRef &weight) const {
        if (!weight) return {};
        return {floats(weight), static_cast<int>(weight->tensor.shape()[1])};
    }

    void add_attention(int i, int group, const AttentionShape &shape, const AttentionPools &pools,
                       AttendNode::Extras extras) {
        program_.add_attention(group, shape);
        const HeadSteps q = head_steps(input(i, 0));
        CpuValue *out = new_value(i);
        auto with_own = [&](std::vector<CpuValue *> used) {
            if (pools.own_k != nullptr) used.insert(used.end(), {pools.own_k, pools.own_v});
            return used;
        };
        std::vector<CpuValue *> used{q.x};
        if (q.rotation) used.push_back(q.rotation->table);
        if (operation(i).inputs.size() == 1) { // K and V are there already
            if (q.norm || q.rotation) program_.add(std::make_unique<HeadsNode>(q.x, q), used);
        } else {
            const HeadSteps k = head_steps(input(i, 1));
            CpuValue *v = value(input(i, 2));
            used.insert(used.end(), {k.x, v});
            if (k.rotation) used.push_back(k.rotation->table);
            program_.add(std::make_unique<CacheNode>(group, shape, pools, q, k, v), with_own(used));
        }
        program_.add(std::make_unique<AttendNode>(group, shape, pools, extras, q.x, out), with_own({q.x, out}));
    }

    // Activations of an operation in the form that a matrix wants; made once for all matrices that want them so.
    CpuValue *activations(int source, const Matrix *matrix) {
        const std::optional<RowNorm> &norm = norms_[at(source)];
        if (!matrix->rounds() && !norm) return value(source);
        for (const Rounded &known : rounded_)
            if (known.source == source && known.matrix->reads_as(*matrix)) return known.value;
        CpuValue *x = value(source), *out = program_.value(lead(source), matrix->x_row_bytes());
        program_.add(std::make_unique<RoundNode>(x, norm, matrix, out), {x, out});
        rounded_.push_back({source, matrix, out});
        return out;
    }

    ProductNode::Part part(int linear, CpuValue *out) {
        const auto &o = *as<op::Linear>(linear);
        const Matrix *matrix = matrices_.find(o.weight);
        done_[at(linear)] = true;
        return {matrix, activations(input(linear), matrix), floats(o.bias), out};
    }

    void add_product(Lead lead, std::vector<ProductNode::Part> parts, CpuValue *residual,
                     std::optional<Activation> activation = std::nullopt) {
        std::vector<CpuValue *> used;
        for (const ProductNode::Part &each : parts) used.insert(used.end(), {each.x, each.out});
        if (residual != nullptr) used.push_back(residual);
        CpuValue *maxima = nullptr;
        if (parts.size() == 1 && parts[0].out == values_[at(in_.trace.output)]) {
            maxima = program_.floats(lead, n_strips(parts[0].matrix->n_out));
            program_.show_maxima(maxima);
            used.push_back(maxima);
        }
        auto node = std::make_unique<ProductNode>(lead, std::move(parts), residual, activation);
        node->keep_maxima(maxima);
        program_.add(std::move(node), used);
    }

    // The Glu that this product feeds, if it can be fused: gate and up have no other reader and the same input.
    std::optional<int> gate_of(int linear) const {
        const std::optional<int> user = only_user(linear);
        if (!user || as<op::Glu>(*user) == nullptr) return std::nullopt;
        const int gate = input(*user, 0), up = input(*user, 1);
        const bool fits = gate != up && as<op::Linear>(gate) && as<op::Linear>(up) && only_user(gate) &&
                          only_user(up) && input(gate) == input(up);
        return fits ? user : std::nullopt;
    }

    // The sum that this product feeds, if it can be fused: it has no other reader, and the other operand exists already.
    std::optional<int> sum_of(int linear) const {
        const std::optional<int> user = only_user(linear);
        if (!user || as<op::Add>(*user) == nullptr || input(*user, 0) == input(*user, 1)) return std::nullopt;
        const int other = input(*user, input(*user, 0) == linear ? 1 : 0);
        const bool known = other < linear && value(other) != nullptr && !norms_[at(other)];
        return known ? user : std::nullopt;
    }

    void lower(int i, const op::Linear &) {
        if (const std::optional<int> glu = gate_of(i)) {
            const int gate = input(*glu, 0), up = input(*glu, 1);
            CpuValue *out = values_[at(*glu)] = program_.floats(lead(i), size_of(operation(i).shape));
            CpuValue *second = program_.floats(lead(i), size_of(operation(i).shape));
            std::vector<ProductNode::Part> parts{part(gate, out), part(up, second)};
            add_product(lead(i), std::move(parts), nullptr, as<op::Glu>(*glu)->activation);
            done_[at(*glu)] = true;
        } else if (const std::optional<int> sum = sum_of(i)) {
            const int other = input(*sum, input(*sum, 0) == i ? 1 : 0);
            CpuValue *out = values_[at(*sum)] = program_.floats(lead(i), size_of(operation(i).shape));
            add_product(lead(i), {part(i, out)}, value(other));
            done_[at(*sum)] = true;
        } else {
            std::vector<ProductNode::Part> parts;
            for (int user : users_[at(input(i))])
                if (user >= i && as<op::Linear>(user) && !done_[at(user)] && !gate_of(user) &&
                    (user == i || !sum_of(user)))
                    parts.push_back(part(user, new_value(user)));
            add_product(lead(i), std::move(parts), nullptr);
        }
    }

    void add_elements(int i, ElementStep step) {
        CpuValue *a = value(input(i)), *b = operation(i).inputs.size() > 1 ? value(input(i, 1)) : nullptr;
        CpuValue *out = new_value(i);
        std::vector<CpuValue *> used{a, out};
        if (b != nullptr) used.push_back(b);
        program_.add(std::make_unique<ElementNode>(step, a, b, out), used);
    }
    void lower(int i, const op::Glu &o) { add_elements(i, {ElementStep::Kind::gate, 0.0F, o.activation}); }
    void lower(int i, const op::Activate &o) { add_elements(i, {ElementStep::Kind::activate, 0.0F, o.activation}); }
    void lower(int i, const op::SoftCap &o) { add_elements(i, {ElementStep::Kind::soft_cap, o.cap}); }
    void lower(int i, const op::Add &) { add_elements(i, {ElementStep::Kind::add}); }
    void lower(int i, const op::Multiply &) { add_elements(i, {ElementStep::Kind::multiply}); }
    void lower(int i, const op::Scale &o) { add_elements(i, {ElementStep::Kind::scale, o.factor}); }

    void lower(int i, const op::SelectRows &) {
        CpuValue *x = value(input(i)), *out = new_value(i);
        program_.add(std::make_unique<SelectRowsNode>(x, out), {x, out});
    }

    void lower(int i, const op::Moe &o) {
        const ExpertMatrices experts{o.gate ? matrices_.experts(o.gate) : std::vector<const Matrix *>{},
                                     matrices_.experts(o.up), matrices_.experts(o.down)};
        const Matrix *up = experts.up.front(), *down = experts.down.front();
        const int64_t used = o.spec.routing.n_used, float_bytes = sizeof(float);
        auto gathered = [&](const Matrix *matrix) { return program_.value(lead(i), matrix->x_row_bytes(), used); };
        MoeNode::Values v{};
        v.x = value(input(i));
        v.scores = value(input(i, 1));
        v.for_up = gathered(up);
        v.up = v.gate = program_.value(lead(i), up->n_out * float_bytes, used);
        v.for_gate = v.for_up;
        if (!experts.gate.empty()) {
            if (!up->reads_as(*experts.gate.front())) v.for_gate = gathered(experts.gate.front());
            v.gate = program_.value(lead(i), up->n_out * float_bytes, used);
        }
        v.rounded = gathered(down);
        v.down = program_.value(lead(i), down->n_out * float_bytes, used);
        v.out = new_value(i);
        program_.add(std::make_unique<MoeNode>(o, experts, v),
                     {v.x, v.scores, v.for_gate, v.for_up, v.gate, v.up, v.rounded, v.down, v.out});
    }

    struct Rounded {
        int source;
        const Matrix *matrix;
        CpuValue *value;
    };
    const CpuProgramInputs &in_;
    const std::vector<Operation> &operations_;
    CpuMatrices &matrices_;
    CpuProgram program_;
    std::vector<CpuValue *> values_;               // by operation
    std::vector<std::optional<RowNorm>> norms_;    // by operation: the norm that is left to its readers
    std::vector<bool> done_;                       // by operation
    std::vector<bool> head_steps_;                 // by operation: norms and rotations that attention begins with
    std::vector<std::vector<int>> users_;          // by operation; -1: the caller
    std::vector<Rounded> rounded_;
    std::vector<std::pair<RopeSpec, CpuValue *>> tables_;
};

} // namespace

CpuProgram lower_cpu(const CpuProgramInputs &inputs) { return CpuLowering(inputs).lower(); }

} // namespace quire
