#include "graph/operations/fused/linear.h"

#include "core/error.h"
#include "core/large_pages.h"
#include "graph/cpu/cpu_lowering.h"
#include "graph/operations/fused/adapted_products.h"
#include "graph/operations/fused/elements.h"
#include "graph/stock/adapter_products.h"
#include "graph/stock/device_weights.h"
#include "graph/stock/row_products.h"
#include "graph/stock/stock_parts.h"

namespace quire {

TraceTensor linear(const TraceTensor &x, WeightRef weight, WeightRef bias) {
    expect_rank("linear", "x", x, 1);
    const Shape &shape = weight->tensor.shape();
    if (shape.size() != 2 || shape[1] != x.shape().rest[0])
        throw ShapeError("linear",
                         cat(weight->name, " is ", to_string(shape), ": expected [out, ", x.shape().rest[0], "]"));
    const int64_t n_out = shape[0];
    expect_f32("linear", bias, {n_out});
    return x.tracer->record(std::make_shared<Linear>(std::move(weight), std::move(bias)), {x},
                            {x.shape().lead, {n_out}});
}

std::string Linear::describe() const { return "linear " + weight_->name + (bias_ ? " + " + bias_->name : ""); }

ggml_tensor *Linear::lower(const StockParts &p) const {
    return with_adapters(p, weight_.get(), p.inputs[0], lower_product(p), bias_ ? p.weight(bias_) : nullptr);
}

ggml_tensor *Linear::lower_product(const StockParts &p) const {
    const auto merged = p.copies == nullptr ? std::nullopt : p.copies->merged(weight_);
    if (merged && !(merged->is_gate && p.lead == 1)) {
        ggml_tensor *&all = p.graph->products[{merged->whole, p.inputs[0]}];
        if (all == nullptr) all = row_product(*p.graph, merged->whole, p.inputs[0]);
        if (all == nullptr) all = batch_product(*p.graph, merged->whole, p.inputs[0]);
        if (all == nullptr) all = ggml_mul_mat(p.context, merged->whole, p.inputs[0]);
        const size_t first_bytes = static_cast<size_t>(merged->first_row) * sizeof(float);
        return ggml_view_2d(p.context, all, p.shape.rest[0], p.lead, all->nb[1], first_bytes);
    }
    if (ggml_tensor *row = row_product(*p.graph, p.weight(weight_), p.inputs[0])) {
        if (!bias_) return row;
        if (ggml_tensor *sum = row_product_plus(*p.graph, row, p.weight(bias_))) return sum;
    }
    ggml_tensor *y = p.sums == nullptr ? batch_product(*p.graph, p.weight(weight_), p.inputs[0]) : nullptr;
    if (y == nullptr) y = ggml_mul_mat(p.context, p.weight(weight_), p.read_by(weight_, p.inputs[0]));
    return bias_ ? ggml_add(p.context, y, p.weight(bias_)) : y;
}

namespace {

// Scratch of a thread.
float *scratch(int64_t n) {
    static thread_local AlignedMemory memory;
    return reinterpret_cast<float *>(memory.at_least(static_cast<size_t>(n) * sizeof(float)));
}

// Rows of x, after that step, in the form that a matrix wants.
class RoundNode : public CpuNode {
  public:
    RoundNode(CpuValue *x, const RowStep &step, const Matrix *matrix, CpuValue *out)
        : x_(x), out_(out), step_(step), matrix_(matrix) {}
    void run(const CpuRun &run) override {
        const int64_t n = matrix_->n_in;
        const int n_rows = run.n(x_->lead);
        const RowForm form = matrix_->form(n_rows);
        const int64_t row_bytes = matrix_->x_row_bytes(form);
        const bool stays_floats = form == RowForm::floats;
        run.team.for_each(n_rows, rows_together(n), [&](int row) {
            const float *x = x_->floats() + row * n;
            uint8_t *to = out_->data + row * row_bytes;
            if (step_) {
                float *made = stays_floats ? reinterpret_cast<float *>(to) : scratch(n);
                step_.apply(run.kernels.rows(), x, made, n);
                x = made;
            }
            if (!stays_floats) round_row(run.kernels, *matrix_, form, x, to);
        });
    }

  private:
    CpuValue *x_, *out_;
    RowStep step_;
    const Matrix *matrix_;
};

// Products over one set of activations, with what follows them: biases, then a residual or a gate.
class ProductNode : public CpuNode {
  public:
    struct Part {
        const Matrix *matrix;
        CpuValue *x;
        const float *bias;
        CpuValue *out;
        // Read where adapters are added.
        const Weight *weight;
        CpuValue *source;
        RowStep step;
    };
    ProductNode(Lead lead, std::vector<Part> parts, CpuValue *residual, std::optional<Activation> activation)
        : lead_(lead), parts_(std::move(parts)), residual_(residual), activation_(activation) {}
    // The largest number of every strip of the only part's rows goes there.
    void keep_maxima(CpuValue *maxima) { maxima_ = maxima; }
    void place() override {
        for (const Part &part : parts_) {
            product_.factors.push_back({part.matrix, part.x->data, part.bias, part.out->floats()});
            adapted_.push_back({part.weight, part.source->floats(), &part.step, part.out->floats()});
        }
        if (residual_ != nullptr) product_.residual = residual_->floats();
    }
    void run(const CpuRun &run) override {
        product_.n_rows = product_.form_rows = run.n(lead_);
        if (product_.n_rows == 0) return;
        const AdapterSums sums(run, lead_, adapted_);
        if (!sums.empty()) return run_adapted(run, sums);
        product_.activation = activation_;
        product_.maxima = maxima_ == nullptr ? nullptr : maxima_->floats();
        const bool alone = product_cost_bytes(product_) < alone_bytes;
        const ProductItems items(run.kernels, product_, alone ? 1 : run.team.n_workers());
        run.team.for_each(items.size(), alone ? items.size() : 1, [&](int item) { items.run(item); });
    }

  private:
    static constexpr int64_t alone_bytes = 96 << 10; // less is not worth waking another thread for

    // Gates and maxima come after the additions.  Rows without adapters get the same bits as in run().
    void run_adapted(const CpuRun &run, const AdapterSums &sums) {
        product_.activation = std::nullopt;
        product_.maxima = nullptr;
        if (sums.has_lengths()) use_terms(false);
        const bool alone = product_cost_bytes(product_) + static_cast<int64_t>(sums.cost_bytes()) < alone_bytes;
        const ProductItems items(run.kernels, product_, alone ? 1 : run.team.n_workers());
        const int n_sums = sums.n_items(), n_items = n_sums + items.size();
        run.team.for_each(n_items, alone ? n_items : 1,
                          [&](int item) { item < n_sums ? sums.multiply_by_a(item) : items.run(item - n_sums); });
        if (sums.has_lengths()) add_terms(run, sums, false);
        sums.add();
        if (sums.has_lengths()) {
            add_terms(run, sums, true);
            use_terms(true);
        }
        const RowKernels &kernels = run.kernels.rows();
        const int64_t n = parts_.front().matrix->n_out;
        float *out = adapted_.front().out;
        if (activation_)
            run.team.for_each(product_.n_rows, rows_together(n), [&](int row) {
                kernels.gate(*activation_, out + row * n, adapted_.back().out + row * n, out + row * n, n);
            });
        if (maxima_ != nullptr)
            run.team.for_each(product_.n_rows, rows_together(n), [&](int row) {
                for (int64_t at = 0; at < n; at += strip_columns)
                    maxima_->floats()[row * n_strips(n) + at / strip_columns] =
                        kernels.largest(out + row * n + at, std::min(strip_columns, n - at));
            });
    }

    // Biases and the residual: added by the product itself, or not.
    void use_terms(bool used) {
        for (size_t p = 0; p < parts_.size(); ++p) product_.factors[p].bias = used ? parts_[p].bias : nullptr;
        product_.residual = used && residual_ != nullptr ? residual_->floats() : nullptr;
    }
    // Adds them to rows whose lengths DoRA changes, or to the other rows.
    void add_terms(const CpuRun &run, const AdapterSums &sums, bool changed) const {
        const RowKernels &kernels = run.kernels.rows();
        for (size_t p = 0; p < parts_.size(); ++p) {
            const float *bias = parts_[p].bias, *residual = residual_ == nullptr ? nullptr : residual_->floats();
            const int64_t n = parts_[p].matrix->n_out;
            if (bias == nullptr && residual == nullptr) continue;
            run.team.for_each(product_.n_rows, rows_together(n), [&](int row) {
                if (sums.changes_lengths(p, row) != changed) return;
                float *out = parts_[p].out->floats() + row * n;
                if (bias != nullptr) kernels.add(out, bias, out, n);
                if (residual != nullptr) kernels.add(residual + row * n, out, out, n);
            });
        }
    }

    Lead lead_;
    std::vector<Part> parts_; // fixed: products refer to their steps
    CpuValue *residual_, *maxima_ = nullptr;
    std::optional<Activation> activation_;
    Product product_;
    std::vector<AdaptedProduct> adapted_; // by part
};

// Activations of an operation in the form that a matrix wants; made once for all matrices that want them so.
CpuValue *activations(CpuLowering &lowering, int source, const Matrix *matrix) {
    const RowStep step{lowering.left_norm(source), lowering.left_activation(source)};
    if (!matrix->rounds() && !step) return lowering.value(source);
    for (const CpuLowering::Rounded &known : lowering.rounded)
        if (known.source == source && known.matrix->reads_as(*matrix)) return known.value;
    CpuValue *x = lowering.value(source);
    CpuValue *out = lowering.program().value(lowering.lead(source), matrix->x_row_bytes());
    lowering.program().add(std::make_unique<RoundNode>(x, step, matrix, out), {x, out});
    lowering.rounded.push_back({source, matrix, out});
    return out;
}

ProductNode::Part part(CpuLowering &lowering, int i, CpuValue *out) {
    const Linear &linear = *lowering.as<Linear>(i);
    const Matrix *matrix = lowering.matrices().find(linear.weight());
    lowering.mark_done(i);
    const int source = lowering.input(i);
    return {matrix,
            activations(lowering, source, matrix),
            weight_floats(linear.bias()),
            out,
            linear.weight().get(),
            lowering.value(source),
            {lowering.left_norm(source), lowering.left_activation(source)}};
}

void add_product(CpuLowering &lowering, Lead lead, std::vector<ProductNode::Part> parts, CpuValue *residual,
                 std::optional<Activation> activation = std::nullopt) {
    CpuProgram &program = lowering.program();
    std::vector<CpuValue *> used;
    for (const ProductNode::Part &each : parts) used.insert(used.end(), {each.x, each.out, each.source});
    if (residual != nullptr) used.push_back(residual);
    CpuValue *maxima = nullptr;
    if (parts.size() == 1 && lowering.trace().output >= 0 && parts[0].out == lowering.value(lowering.trace().output)) {
        maxima = program.floats(lead, n_strips(parts[0].matrix->n_out));
        program.show_maxima(maxima);
        used.push_back(maxima);
    }
    auto node = std::make_unique<ProductNode>(lead, std::move(parts), residual, activation);
    node->keep_maxima(maxima);
    program.add(std::move(node), used);
}

// The Glu that this product feeds, if it can be fused: gate and up have no other reader and the same input.
std::optional<int> gate_of(const CpuLowering &lowering, int linear) {
    const std::optional<int> user = lowering.only_user(linear);
    if (!user || lowering.as<Glu>(*user) == nullptr) return std::nullopt;
    const int gate = lowering.input(*user, 0), up = lowering.input(*user, 1);
    const bool fits = gate != up && lowering.as<Linear>(gate) && lowering.as<Linear>(up) && lowering.only_user(gate) &&
                      lowering.only_user(up) && lowering.input(gate) == lowering.input(up);
    return fits ? user : std::nullopt;
}

// The other operand of the sum that this product feeds.
int other_operand(const CpuLowering &lowering, int sum, int linear) {
    return lowering.input(sum, lowering.input(sum, 0) == linear ? 1 : 0);
}

// The sum that this product feeds, if it can be fused: it has no other reader, and the other operand exists already.
std::optional<int> sum_of(CpuLowering &lowering, int linear) {
    const std::optional<int> user = lowering.only_user(linear);
    if (!user || lowering.as<Add>(*user) == nullptr || lowering.input(*user, 0) == lowering.input(*user, 1))
        return std::nullopt;
    const int other = other_operand(lowering, *user, linear);
    const bool known = other < linear && lowering.value(other) != nullptr && !lowering.is_left(other);
    return known ? user : std::nullopt;
}

} // namespace

void Linear::add_nodes(CpuLowering &lowering, int i) const {
    const Lead lead = lowering.lead(i);
    std::vector<ProductNode::Part> parts;
    if (const std::optional<int> glu = gate_of(lowering, i)) {
        CpuValue *out = lowering.new_value(*glu);
        CpuValue *second = lowering.program().floats(lead, row_size(lowering.operation(i).shape));
        parts.push_back(part(lowering, lowering.input(*glu, 0), out));
        parts.push_back(part(lowering, lowering.input(*glu, 1), second));
        add_product(lowering, lead, std::move(parts), nullptr, lowering.as<Glu>(*glu)->activation());
        lowering.mark_done(*glu);
    } else if (const std::optional<int> sum = sum_of(lowering, i)) {
        parts.push_back(part(lowering, i, lowering.new_value(*sum)));
        add_product(lowering, lead, std::move(parts), lowering.value(other_operand(lowering, *sum, i)));
        lowering.mark_done(*sum);
    } else {
        for (int user : lowering.users(lowering.input(i)))
            if (user >= i && lowering.as<Linear>(user) && !lowering.is_done(user) && !gate_of(lowering, user) &&
                (user == i || !sum_of(lowering, user)))
                parts.push_back(part(lowering, user, lowering.new_value(user)));
        add_product(lowering, lead, std::move(parts), nullptr);
    }
}

} // namespace quire
