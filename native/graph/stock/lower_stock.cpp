#include "graph/stock/lower_stock.h"

#include <algorithm>

#include "core/error.h"
#include "graph/stock/adapter_products.h"
#include "graph/stock/logit_strips.h"
#include "graph/stock/stock_parts.h"
#include "graph/trace/boundary.h"

namespace quire {

ggml_tensor *StockGraph::new_input(ggml_type type, std::initializer_list<int64_t> ne, const char *label) {
    ggml_tensor *tensor = ggml_new_tensor(context(), type, static_cast<int>(ne.size()), ne.begin());
    ggml_set_input(tensor);
    ggml_set_name(tensor, label);
    out.inputs.all.push_back(tensor);
    return tensor;
}

ggml_tensor *StockLowering::lower_operation(StockGraph &graph, const Operation &operation) const {
    const GraphKey &key = graph.out.key;
    StockParts parts{
        graph.context(), {}, operation.shape, operation.shape.lead == Lead::tokens ? key.n_tokens : key.n_rows};
    parts.graph = &graph;
    parts.sums = sums_;
    parts.copies = copies_;
    if (operation.kind->has_state()) {
        parts.store = &store_;
        if (device_ == nullptr) {
            ggml_tensor *&sequences = graph.out.inputs.sequences;
            if (sequences == nullptr) sequences = graph.new_input(GGML_TYPE_I32, {2, key.n_tokens + 1}, "sequences");
            parts.sequences = sequences;
        }
    }
    for (int input : operation.inputs) {
        parts.inputs.push_back(graph.values[static_cast<size_t>(input)]);
        parts.n_reads.push_back(graph.n_reads[static_cast<size_t>(input)]);
    }
    return operation.kind->lower(parts);
}

// A value may be a view of memory that later operations overwrite, so readers outside get a copy.
void StockLowering::lower_left(StockGraph &graph, const Left &left) {
    ggml_tensor *value = graph.values[static_cast<size_t>(left.operation)], *in_host = nullptr;
    if (left.boundary->on_device) {
        const int64_t lead = left.boundary->shape.lead == Lead::tokens ? graph.out.key.n_tokens : graph.out.key.n_rows;
        ggml_tensor *rows = device_rows(graph.context(), *left.boundary, lead);
        ggml_build_forward_expand(graph.out.graph, ggml_cpy(graph.context(), value, rows));
    }
    if (left.boundary->in_host) {
        in_host = ggml_cont(graph.context(), value);
        ggml_set_output(in_host);
        ggml_build_forward_expand(graph.out.graph, in_host);
    }
    graph.out.left.push_back(in_host);
}

LoweredGraph StockLowering::lower(const Trace &trace, const GraphKey &key) const {
    size_t n_tensors = 128; // room for shared inputs and the like
    for (const Operation &operation : trace.operations) {
        const size_t n_parts = operation.kind->has_state() ? key.states.parts.size() : 0;
        n_tensors += operation.kind->n_tensors() * std::max<size_t>(1, n_parts) + adapter_tensors(key) + 8;
    }
    LoweredGraph out;
    out.key = key;
    ggml_init_params params{ggml_tensor_overhead() * n_tensors + ggml_graph_overhead_custom(n_tensors, false), nullptr,
                            true};
    out.context.reset(ggml_init(params));
    if (!out.context) throw CapacityError("lower", "out of memory: records of a graph");
    out.graph = ggml_new_graph_custom(out.context.get(), n_tensors, false);
    StockGraph graph{trace, store_, out};
    graph.device = device_;
    graph.adapters = &adapters_;
    graph.copies = copies_;
    for (const std::vector<int> &readers : readers_of(trace)) graph.n_reads.push_back(static_cast<int>(readers.size()));
    graph.values.reserve(trace.operations.size());
    for (const Operation &operation : trace.operations) graph.values.push_back(lower_operation(graph, operation));
    if (trace.output >= 0) {
        out.output = graph.values[static_cast<size_t>(trace.output)];
        ggml_set_output(out.output);
        ggml_set_name(out.output, "output");
    }
    if (trace.hidden >= 0) {
        out.hidden = graph.values[static_cast<size_t>(trace.hidden)];
        ggml_set_output(out.hidden); // keeps its memory from being reused
    }
    for (const Tap &tap : trace.taps) {
        // A value may be a view of memory that later operations overwrite.
        ggml_tensor *copy = ggml_cont(out.context.get(), graph.values[static_cast<size_t>(tap.operation)]);
        ggml_set_output(copy);
        out.taps.push_back(copy);
    }
    for (ggml_tensor *tap : out.taps) ggml_build_forward_expand(out.graph, tap);
    for (const Left &left : trace.left) lower_left(graph, left);
    for (const auto &[layer, written] : graph.written) // writes to pools that no node of this graph reads
        if (trace.encoder == nullptr && trace.cache[static_cast<size_t>(layer)].rows->of_source)
            for (ggml_tensor *pool : {written.k, written.v}) ggml_build_forward_expand(out.graph, pool);
    if (out.output != nullptr) ggml_build_forward_expand(out.graph, out.output);
    if (out.output != nullptr && key.n_strips > 0) {
        out.strips = find_strips(out.context.get(), device_, out.output, key.n_strips);
        for (ggml_tensor *tensor : {out.strips.values, out.strips.ids, out.strips.sums}) {
            if (tensor == nullptr) continue;
            ggml_set_output(tensor);
            ggml_build_forward_expand(out.graph, tensor);
        }
    }
    return out;
}

} // namespace quire
