#include "graph/stock_graphs.h"

#include <ggml-backend.h>

namespace quire {

StockGraphs::StockGraphs(const Trace &trace, const KvStore &store, Backend &backend, GraphLimits limits,
                         bool sums_inputs)
    : backend_(backend), store_(store), on_device_(!backend.is_cpu()),
      sums_(sums_inputs ? std::make_unique<InputSums>() : nullptr),
      lowering_(store, on_device_ ? backend.handle() : nullptr, sums_.get()), buckets_(limits, on_device_),
      planner_(trace, store, {limits.max_rows, limits.max_sequences, limits.max_kv_tokens}, on_device_),
      cache_(backend, trace, lowering_), taps_(trace.taps.size()) {
    const int n_tokens = buckets_.tokens(limits.max_rows);
    const int n_rows = buckets_.logit_rows(n_tokens, limits.max_logit_rows);
    if (on_device_) { // a small graph tells what the device lacks
        const int few = buckets_.tokens(1);
        for (const std::vector<AttentionForm> &form : planner_.largest(few)) {
            const LoweredGraph tried = lowering_.lower(trace, {few, 1, form});
            for (int group : tried.explicit_groups) planner_.set_explicit(group);
        }
    }
    for (std::vector<AttentionForm> &form : planner_.largest(n_tokens))
        cache_.reserve({n_tokens, n_rows, std::move(form)});
}

std::vector<AttentionForm> StockGraphs::forms(const std::vector<GroupAttention> &attention) {
    std::vector<AttentionForm> forms;
    for (const GroupAttention &group : attention) forms.push_back(group.form);
    return forms;
}

float *StockGraphs::run(const StepBatch &batch) {
    const int n_tokens = buckets_.tokens(static_cast<int>(batch.tokens.size()));
    const int n_rows = buckets_.logit_rows(n_tokens, static_cast<int>(std::max<size_t>(1, batch.logit_rows.size())));
    const std::vector<GroupAttention> attention = planner_.plan(batch, n_tokens);
    last_ = nullptr;
    const LoweredGraph &graph = cache_.get({n_tokens, n_rows, forms(attention)});
    inputs_.fill({graph, batch, attention, cache_.inputs(), store_.layout()});
    if (sums_) sums_->begin_step(static_cast<int>(batch.tokens.size()), static_cast<int>(batch.logit_rows.size()));
    cache_.inputs().send(graph);
    cache_.run(graph);
    last_ = &graph;
    n_tokens_ = batch.tokens.size();
    n_rows_ = batch.logit_rows.size();
    hidden_.is_there = false;
    for (Copy &copy : taps_) copy.is_there = false;
    float *logits = fetch(graph.output, n_rows_, logits_);
    if (batch.hidden == HiddenStates::wanted && graph.hidden != nullptr) fetch(graph.hidden, n_rows_, hidden_);
    if (on_device_) ggml_backend_synchronize(backend_.handle());
    return logits;
}

float *StockGraphs::fetch(const ggml_tensor *tensor, size_t n_rows, Copy &copy) {
    if (ggml_backend_buffer_is_host(tensor->buffer)) return static_cast<float *>(tensor->data);
    const size_t bytes = n_rows * static_cast<size_t>(tensor->ne[0]) * sizeof(float);
    if (bytes > copy.size_bytes) {
        copy.buffer.reset();
        copy.size_bytes = 0;
        copy.buffer.reset(new_transfer_buffer(backend_, bytes));
        copy.size_bytes = bytes;
    }
    copy.is_there = true;
    auto *target = copy.buffer ? static_cast<float *>(ggml_backend_buffer_get_base(copy.buffer.get())) : nullptr;
    if (bytes > 0) ggml_backend_tensor_get_async(backend_.handle(), tensor, target, 0, bytes);
    return target;
}

const float *StockGraphs::fetch_now(const ggml_tensor *tensor, size_t n_rows, Copy &copy) {
    if (copy.is_there) return static_cast<const float *>(ggml_backend_buffer_get_base(copy.buffer.get()));
    const float *found = fetch(tensor, n_rows, copy);
    if (on_device_) ggml_backend_synchronize(backend_.handle());
    return found;
}

const float *StockGraphs::hidden() {
    return last_ == nullptr || last_->hidden == nullptr ? nullptr : fetch_now(last_->hidden, n_rows_, hidden_);
}

const float *StockGraphs::tap(size_t i) {
    return last_ == nullptr ? nullptr : fetch_now(last_->taps[i], n_tokens_, taps_[i]);
}

} // namespace quire
