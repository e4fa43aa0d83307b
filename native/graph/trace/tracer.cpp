#include "graph/trace/tracer.h"

#include <algorithm>

#include "core/error.h"
#include "graph/trace/shape_checks.h"
#include "graph/trace/step_values.h"

namespace quire {
namespace {

// Logits are a product, and perhaps capped or scaled.
int hidden_of(const std::vector<Operation> &operations, int output) {
    for (;;) {
        const Operation &operation = operations[static_cast<size_t>(output)];
        switch (operation.kind->output_step()) {
        case OperationKind::OutputStep::product: return operation.inputs[0];
        case OperationKind::OutputStep::follows_product: output = operation.inputs[0]; break;
        case OperationKind::OutputStep::other: return -1;
        }
    }
}
} // namespace

const TraceShape &TraceTensor::shape() const { return tracer->operation(id).shape; }

Tracer::Tracer(std::vector<CacheSpec> cache) : cache_(std::move(cache)), written_(cache_.size(), false) {
    CacheLayout(cache_, DType::f32); // checks it
    for (const CacheSpec &spec : cache_) claimed_.emplace_back(spec.states.size(), false);
    operations_.push_back({step_tokens(), {}, {Lead::tokens, {}}});
    operations_.push_back({step_positions(), {}, {Lead::tokens, {}}});
    operations_.push_back({step_logit_rows(), {}, {Lead::rows, {}}});
    operations_.push_back({step_token_types(), {}, {Lead::tokens, {}}});
}

std::shared_ptr<Tracer> Tracer::make(std::vector<CacheSpec> cache) {
    return std::shared_ptr<Tracer>(new Tracer(std::move(cache)));
}

TraceTensor Tracer::record(std::shared_ptr<const OperationKind> kind, const std::vector<TraceTensor> &inputs,
                           TraceShape shape) {
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

void Tracer::tap(int layer, const TraceTensor &x) {
    if (x.tracer.get() != this || finished_)
        throw ShapeError("tap", "taps must be declared before the trace is finished, of its own values");
    if (layer < 0 || (!taps_.empty() && layer <= taps_.back().layer))
        throw ShapeError("tap", cat("layers must ascend from 0 but ", layer, " comes after ",
                                    taps_.empty() ? -1 : taps_.back().layer));
    if (x.shape().lead != Lead::tokens || x.shape().rest.size() != 1)
        throw ShapeError("tap", cat("a hidden state must be [tokens, n] but is ", shape_text(x.shape())));
    taps_.push_back({layer, x.id});
}

TraceTensor Tracer::features(int64_t n) {
    if (n < 1 || n_features_ > 0)
        throw ShapeError("features",
                         cat("features must be asked for once, and be of 1 number at least, but are of ", n));
    n_features_ = n;
    return record(step_features(), {}, {Lead::tokens, {n}});
}

bool Tracer::is_encoder() const {
    for (size_t layer = 0; layer < written_.size(); ++layer)
        if (written_[layer] && cache_[layer].rows->of_source) return true;
    return false;
}

void Tracer::check_written(const Trace *encoder) const {
    const bool encodes = is_encoder();
    bool has_source = false;
    for (size_t layer = 0; layer < written_.size(); ++layer) {
        if (!cache_[layer].rows) continue;
        const bool of_source = cache_[layer].rows->of_source;
        has_source |= of_source;
        if (of_source == encodes && !written_[layer])
            throw ShapeError("trace", cat("every layer's rows must be written but layer ", layer, "'s are not"));
        if (of_source != encodes && written_[layer])
            throw ShapeError("trace", cat("an encoder must write the rows of sources alone but writes layer ", layer));
    }
    if ((encoder != nullptr) != (has_source && !encodes) || (encoder != nullptr && encoder->cache != cache_))
        throw ShapeError("trace", "a trace must come with an encoder's of the same cache where layers keep the rows of "
                                  "a source, and only there");
}

Trace Tracer::finish(const TraceTensor &output, OutputKind kind, std::shared_ptr<const Trace> encoder) {
    if (output.tracer.get() != this || finished_)
        throw ShapeError("trace", "a trace must be finished once, with its own value");
    const TraceShape &shape = output.shape();
    if (shape.lead != Lead::rows || shape.rest.size() != 1) {
        throw ShapeError("trace", cat(kind == OutputKind::logits ? "logits must be [rows, n_vocab] but are "
                                                                 : "vectors must be [rows, n] but are ",
                                      shape_text(shape)));
    }
    check_written(encoder.get());
    for (size_t layer = 0; layer < claimed_.size(); ++layer) {
        for (size_t i = 0; i < claimed_[layer].size(); ++i)
            if (!claimed_[layer][i])
                throw ShapeError("trace", cat("every state must belong to an operation but ",
                                              cache_[layer].states[i].name, " of layer ", layer, " does not"));
    }
    finished_ = true;
    Trace trace{cache_, operations_, output.id, kind, shape.rest[0], output.id, taps_};
    const bool both_ways = trace.attends_both_ways();
    trace.encoder = std::move(encoder);
    trace.n_features_read = n_features_;
    if (both_ways && !is_encoder() &&
        !std::ranges::all_of(cache_, [](const CacheSpec &spec) { return spec == CacheSpec{}; }))
        throw ShapeError("trace", "rows that attend to each other both ways must keep nothing, but a layer does");
    if (kind == OutputKind::logits) {
        trace.hidden = hidden_of(operations_, output.id);
        return trace;
    }
    for (const Operation &operation : operations_) {
        const Weight *table = operation.kind->table();
        if (table != nullptr && operation.inputs[0] == tokens_operation) trace.n_vocab = table->tensor.shape()[0];
    }
    return trace;
}

bool Trace::attends_both_ways() const {
    return std::ranges::any_of(operations,
                               [](const Operation &operation) { return operation.kind->attends_both_ways(); });
}

bool Trace::reads_token_types() const {
    return std::ranges::any_of(operations, [](const Operation &operation) {
        return std::ranges::count(operation.inputs, token_types_operation) > 0;
    });
}

std::vector<std::vector<int>> users_of(const Trace &trace) {
    std::vector<std::vector<int>> users(trace.operations.size());
    auto add = [&](int operation, int user) {
        if (operation >= 0) users[static_cast<size_t>(operation)].push_back(user);
    };
    for (size_t i = 0; i < trace.operations.size(); ++i)
        for (int input : trace.operations[i].inputs) add(input, static_cast<int>(i));
    add(trace.output, -1);
    for (const Tap &tap : trace.taps) add(tap.operation, -1);
    for (const Left &left : trace.left) add(left.operation, -1);
    return users;
}

std::vector<std::vector<int>> readers_of(const Trace &trace) {
    std::vector<std::vector<int>> readers = users_of(trace);
    if (trace.hidden >= 0) readers[static_cast<size_t>(trace.hidden)].push_back(-1);
    return readers;
}

std::string describe(const Operation &operation) {
    std::string text = operation.kind->describe() + " (";
    for (size_t i = 0; i < operation.inputs.size(); ++i) text += cat(i == 0 ? "%" : ", %", operation.inputs[i]);
    return text + ") -> " + shape_text(operation.shape);
}

} // namespace quire
