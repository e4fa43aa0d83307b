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
    if (finished_) throw ShapeError("trace", "operation recorded after the trace was finished");
    Operation operation{std::move(kind), {}, std::move(shape)};
    for (const TraceTensor &input : inputs) {
        if (input.tracer.get() != this) throw ShapeError("trace", "inputs of an operation belong to different tracers");
        operation.inputs.push_back(input.id);
    }
    operations_.push_back(std::move(operation));
    return {shared_from_this(), static_cast<int>(operations_.size()) - 1};
}

const CacheRows &Tracer::rows_of(int layer) const {
    if (layer < 0 || static_cast<size_t>(layer) >= cache_.size()) {
        throw ShapeError("attend", cat("layer ", layer, " is out of range: expected less than ", cache_.size()));
    }
    const std::optional<CacheRows> &rows = cache_[static_cast<size_t>(layer)].rows;
    if (!rows) throw ShapeError("attend", cat("layer ", layer, " keeps no rows of K and V"));
    return *rows;
}

void Tracer::mark_written(int layer) {
    if (written_[static_cast<size_t>(layer)])
        throw ShapeError("attend", cat("K and V of layer ", layer, " are written twice"));
    written_[static_cast<size_t>(layer)] = true;
}

void Tracer::claim_state(const char *place, int layer, int index, int64_t n) {
    if (layer < 0 || static_cast<size_t>(layer) >= cache_.size())
        throw ShapeError(place, cat("layer ", layer, " is out of range: expected less than ", cache_.size()));
    const std::vector<CacheState> &states = cache_[static_cast<size_t>(layer)].states;
    if (index < 0 || static_cast<size_t>(index) >= states.size())
        throw ShapeError(place, cat("state ", index, " is out of range: layer ", layer, " has ", states.size()));
    const CacheState &state = states[static_cast<size_t>(index)];
    if (state.n != n)
        throw ShapeError(place,
                         cat("state ", state.name, " of layer ", layer, " has ", state.n, " numbers: expected ", n));
    std::vector<bool>::reference claimed = claimed_[static_cast<size_t>(layer)][static_cast<size_t>(index)];
    if (claimed) throw ShapeError(place, cat("state ", state.name, " of layer ", layer, " is used by two operations"));
    claimed = true;
}

void Tracer::tap(int layer, const TraceTensor &x) {
    if (x.tracer.get() != this || finished_)
        throw ShapeError("tap", "tap of another tracer's value, or after the trace was finished");
    if (layer < 0 || (!taps_.empty() && layer <= taps_.back().layer))
        throw ShapeError(
            "tap", cat("taps out of order: layer ", layer, " comes after ", taps_.empty() ? -1 : taps_.back().layer));
    if (x.shape().lead != Lead::tokens || x.shape().rest.size() != 1)
        throw ShapeError("tap", cat("a hidden state is ", shape_text(x.shape()), ": expected [tokens, n]"));
    taps_.push_back({layer, x.id});
}

TraceTensor Tracer::features(int64_t n) {
    if (n < 1 || n_features_ > 0)
        throw ShapeError("features",
                         cat("cannot request features of ", n, " numbers: expected 1 or more, and only once"));
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
            throw ShapeError("trace", cat("rows of layer ", layer, " are never written"));
        if (of_source != encodes && written_[layer])
            throw ShapeError(
                "trace",
                cat("layer ", layer, " is written by the wrong trace: an encoder writes exactly the rows of a source"));
    }
    if ((encoder != nullptr) != (has_source && !encodes) || (encoder != nullptr && encoder->cache != cache_))
        throw ShapeError("trace",
                         "encoder and cache do not match: a trace needs an encoder of the same cache exactly if "
                         "layers keep rows of a source");
}

Trace Tracer::finish(const TraceTensor &output, OutputKind kind, std::shared_ptr<const Trace> encoder) {
    if (output.tracer.get() != this || finished_)
        throw ShapeError("trace", "trace finished twice, or with another tracer's value");
    const TraceShape &shape = output.shape();
    if (shape.lead != Lead::rows || shape.rest.size() != 1) {
        throw ShapeError("trace", cat(kind == OutputKind::logits ? "expected logits [rows, n_vocab], got "
                                                                 : "expected vectors [rows, n], got ",
                                      shape_text(shape)));
    }
    check_written(encoder.get());
    for (size_t layer = 0; layer < claimed_.size(); ++layer) {
        for (size_t i = 0; i < claimed_[layer].size(); ++i)
            if (!claimed_[layer][i])
                throw ShapeError("trace", cat("state ", cache_[layer].states[i].name, " of layer ", layer,
                                              " is used by no operation"));
    }
    finished_ = true;
    Trace trace{cache_, operations_, output.id, kind, shape.rest[0], output.id, taps_};
    const bool both_ways = trace.attends_both_ways();
    trace.encoder = std::move(encoder);
    trace.n_features_read = n_features_;
    if (both_ways && !is_encoder() &&
        !std::ranges::all_of(cache_, [](const CacheSpec &spec) { return spec == CacheSpec{}; }))
        throw ShapeError("trace", "a layer keeps rows or states, but rows attend to each other both ways");
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
