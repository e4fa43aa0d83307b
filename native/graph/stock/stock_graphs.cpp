#include "graph/stock/stock_graphs.h"

#include <ggml-backend.h>

#include "graph/trace/boundary.h"

namespace quire {

StockDevice::StockDevice(Backend &backend_, const KvStore &store_, bool sums_inputs, DeviceWeights *copies)
    : backend(backend_), store(store_), on_device(!backend_.is_cpu()),
      sums(sums_inputs ? std::make_unique<InputSums>() : nullptr), adapters(backend_.device()),
      lowering(store_, on_device ? backend_.handle() : nullptr, sums.get(), copies, adapters),
      cache(backend_, lowering) {}

StockGraphs::StockGraphs(StockDevice &device, const Trace &trace, GraphLimits limits)
    : device_(device), trace_(trace), number_(device.cache.add_trace(trace)), buckets_(limits, device.on_device),
      planner_(trace, device.store, {limits.max_rows, limits.max_sequences, limits.max_kv_tokens}, device.on_device),
      states_(trace, limits.max_sequences, device.on_device), strips_(device.backend), taps_(trace.taps.size()) {
    driver_call(device.backend.device(), [&] { reserve(limits); });
}

void StockGraphs::reserve(const GraphLimits &limits) {
    StockDevice &device = device_;
    const int n_tokens = buckets_.tokens(limits.max_rows);
    const int n_rows = buckets_.logit_rows(n_tokens, limits.max_logit_rows);
    if (device.on_device) { // a small graph shows which operations the device lacks
        const int few = buckets_.tokens(1), n_strips = may_find_strips() ? most_strips(trace_.n_vocab) : 0;
        const StateForm states = states_.largest(few).front();
        for (const std::vector<AttentionForm> &form : planner_.largest(few)) {
            const LoweredGraph tried = device.lowering.lower(trace_, {few, 1, number_, form, n_strips, states});
            finds_strips_ = tried.strips.values != nullptr;
            for (int group : tried.explicit_groups) planner_.set_explicit(group);
            for (size_t group = 0; group < form.size(); ++group)
                if (!form[group].parts.empty() && form[group].parts.front().source == CachedRows::sequence &&
                    !tried.copied_groups.contains(static_cast<int>(group)))
                    planner_.set_uncopied(static_cast<int>(group));
        }
        const LoweredGraph tried =
            device.lowering.lower(trace_, {few, 1, number_, planner_.paged(few), n_strips, states});
        for (size_t group = 0; group < device.store.layout().groups().size(); ++group)
            if (!tried.unpaged_groups.contains(static_cast<int>(group))) planner_.set_paged(static_cast<int>(group));
    }
    const int n_strips = finds_strips_ ? most_strips(trace_.n_vocab) : 0;
    const std::vector<std::vector<AttentionForm>> attention = planner_.largest(n_tokens);
    const std::vector<StateForm> states = states_.largest(n_tokens);
    for (const std::vector<AttentionForm> &form : attention)
        device.cache.reserve({n_tokens, n_rows, number_, form, n_strips, states.front()});
    for (size_t i = 1; i < states.size(); ++i)
        device.cache.reserve({n_tokens, n_rows, number_, attention.front(), n_strips, states[i]});
}

std::vector<AttentionForm> StockGraphs::forms(const std::vector<GroupAttention> &attention) {
    std::vector<AttentionForm> forms;
    for (const GroupAttention &group : attention) forms.push_back(group.form);
    return forms;
}

float *StockGraphs::run(const StepBatch &batch) {
    return driver_call(device_.backend.device(), [&] { return run_step(batch); });
}

float *StockGraphs::run_step(const StepBatch &batch) {
    const int n_tokens = buckets_.tokens(static_cast<int>(batch.tokens.size()));
    const int n_rows = buckets_.logit_rows(n_tokens, static_cast<int>(std::max<size_t>(1, batch.logit_rows.size())));
    const std::vector<GroupAttention> attention = planner_.plan(batch, n_tokens);
    const StatePlan states = states_.plan(batch, n_tokens);
    last_ = nullptr;
    prepare_adapters(batch);
    const GraphCache &cache = device_.cache;
    const LoweredGraph &graph = device_.cache.get({n_tokens, n_rows, number_, forms(attention),
                                                   finds_strips_ ? strips_wanted(batch.likeliest, trace_.n_vocab) : 0,
                                                   states.form, DeviceAdapters::n_levels(batch)});
    device_.inputs.fill({graph, batch, attention, states, device_.store.sizes().n_states, cache.inputs(),
                         device_.store.layout(), device_.adapters});
    if (device_.sums)
        device_.sums->begin_step(static_cast<int>(batch.tokens.size()), static_cast<int>(batch.logit_rows.size()));
    cache.inputs().send(graph);
    device_.cache.run(graph);
    last_ = &graph;
    n_tokens_ = batch.tokens.size();
    n_rows_ = batch.logit_rows.size();
    hidden_.is_there = false;
    for (Copy &copy : taps_) copy.is_there = false;
    float *logits = graph.output == nullptr ? nullptr : fetch_logits(graph, batch);
    if (batch.hidden == HiddenStates::wanted && graph.hidden != nullptr) fetch(graph.hidden, n_rows_, hidden_);
    fetch_left(graph);
    if (device_.on_device) ggml_backend_synchronize(device_.backend.handle());
    if (has_strips_) strips_.finish();
    return logits;
}

// Graphs that are built before an allocation fails would read the old stacks.
void StockGraphs::prepare_adapters(const StepBatch &batch) {
    try {
        if (device_.adapters.prepare(batch)) device_.cache.forget_all();
    } catch (...) {
        device_.cache.forget_all();
        throw;
    }
}

void StockGraphs::fetch_left(const LoweredGraph &graph) const {
    for (size_t i = 0; i < graph.left.size(); ++i) {
        if (graph.left[i] == nullptr) continue;
        const Boundary &boundary = *trace_.left[i].boundary;
        const size_t n_rows = boundary.shape.lead == Lead::tokens ? n_tokens_ : n_rows_;
        const size_t bytes = n_rows * static_cast<size_t>(boundary.row_floats()) * sizeof(float);
        if (bytes > 0) ggml_backend_tensor_get_async(device_.backend.handle(), graph.left[i], boundary.host, 0, bytes);
    }
}

float *StockGraphs::fetch(const ggml_tensor *tensor, size_t n_rows, Copy &copy) {
    if (ggml_backend_buffer_is_host(tensor->buffer)) return static_cast<float *>(tensor->data);
    const size_t bytes = n_rows * static_cast<size_t>(tensor->ne[0]) * sizeof(float);
    float *target = room(bytes, copy);
    copy.is_there = true;
    if (bytes > 0) ggml_backend_tensor_get_async(device_.backend.handle(), tensor, target, 0, bytes);
    return target;
}

bool StockGraphs::may_find_strips() const { return trace_.output >= 0 && trace_.kind == OutputKind::logits; }

float *StockGraphs::room(size_t bytes, Copy &copy) {
    if (bytes > copy.size_bytes) {
        copy.buffer.reset();
        copy.size_bytes = 0;
        copy.buffer.reset(new_transfer_buffer(device_.backend, bytes));
        copy.size_bytes = bytes;
        if (&copy == &logits_) strips_.forget_rows();
    }
    return copy.buffer ? static_cast<float *>(ggml_backend_buffer_get_base(copy.buffer.get())) : nullptr;
}

float *StockGraphs::fetch_logits(const LoweredGraph &graph, const StepBatch &batch) {
    has_strips_ = graph.strips.values != nullptr;
    if (!has_strips_) {
        strips_.forget_rows();
        return fetch(graph.output, n_rows_, logits_);
    }
    float *rows = room(n_rows_ * static_cast<size_t>(graph.output->ne[0]) * sizeof(float), logits_);
    strips_.ask(graph, batch.likeliest, rows);
    return rows;
}

const float *StockGraphs::fetch_now(const ggml_tensor *tensor, size_t n_rows, Copy &copy) {
    if (copy.is_there) return static_cast<const float *>(ggml_backend_buffer_get_base(copy.buffer.get()));
    return driver_call(device_.backend.device(), [&] {
        const float *found = fetch(tensor, n_rows, copy);
        if (device_.on_device) ggml_backend_synchronize(device_.backend.handle());
        return found;
    });
}

const float *StockGraphs::hidden() {
    return last_ == nullptr || last_->hidden == nullptr ? nullptr : fetch_now(last_->hidden, n_rows_, hidden_);
}

const float *StockGraphs::tap(size_t i) {
    return last_ == nullptr ? nullptr : fetch_now(last_->taps[i], n_tokens_, taps_[i]);
}

} // namespace quire
