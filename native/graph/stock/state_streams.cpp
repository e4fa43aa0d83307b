#include "graph/stock/state_streams.h"

#include <ggml-backend.h>

#include <memory>

#include "core/error.h"
#include "graph/stock/lower_stock.h"

namespace quire {
namespace {

ggml_tensor *flat(ggml_context *context, ggml_tensor *x, int64_t n_rows) {
    return ggml_reshape_2d(context, x, ggml_nelements(x) / n_rows, n_rows);
}

// Writes the new states to the slots of the streams.
void write_states(const StockParts &p, int part, ggml_tensor *values, ggml_tensor *pool) {
    StockGraph &graph = *p.graph;
    ggml_tensor *writes = graph.shared_input(graph.out.inputs.states.writes, part, [&] {
        return graph.new_input(GGML_TYPE_I64, {values->ne[1]}, "state_writes");
    });
    ggml_build_forward_expand(graph.out.graph, ggml_set_rows(p.context, pool, values, writes));
}

ggml_tensor *reads_of(const StockParts &p, int part, int64_t n_streams) {
    StockGraph &graph = *p.graph;
    return graph.shared_input(graph.out.inputs.states.reads, part,
                              [&] { return graph.new_input(GGML_TYPE_I32, {n_streams}, "state_reads"); });
}

} // namespace

ggml_tensor *stock_dense(ggml_context *context, ggml_tensor *x) {
    return ggml_is_contiguous(x) ? x : ggml_cont(context, x);
}

ggml_tensor *StateStreams::masked(ggml_tensor *x) const {
    if (mask == nullptr) return x;
    const int64_t n = ggml_nelements(x) / n_rows();
    return ggml_mul(context, ggml_reshape_2d(context, x, n, n_rows()), ggml_reshape_2d(context, mask, 1, n_rows()));
}

StreamsMade stock_split(const StateStreams &streams, ggml_tensor *made, int64_t row_floats) {
    const int64_t n_rows = streams.n_rows(), n_state = streams.pool->ne[0];
    const size_t row_bytes = static_cast<size_t>(row_floats) * sizeof(float),
                 state_bytes = static_cast<size_t>(n_state) * sizeof(float);
    return {ggml_view_2d(streams.context, made, row_floats, n_rows, row_bytes, 0),
            ggml_view_2d(streams.context, made, n_state, streams.n_streams, state_bytes,
                         row_bytes * static_cast<size_t>(n_rows))};
}

ggml_tensor *stock_by_streams(const StockParts &p, const std::vector<ggml_tensor *> &inputs, const Tensor &states,
                              const std::function<StreamsMade(const StateStreams &)> &make) {
    StockGraph &graph = *p.graph;
    ggml_context *ctx = p.context;
    StateInputs &given = graph.out.inputs.states;
    const StateForm &form = graph.out.key.states;
    ggml_tensor *all = nullptr;
    for (size_t i = 0; i < form.parts.size(); ++i) {
        const StatePart &part = form.parts[i];
        const auto number = static_cast<int>(i);
        StateStreams streams{ctx,
                             part.n_streams,
                             part.stream_rows,
                             {},
                             states.handle(),
                             reads_of(p, number, part.n_streams),
                             nullptr,
                             [&p](const WeightRef &weight) { return p.weight(weight); }};
        const int64_t n_rows = streams.n_rows();
        for (ggml_tensor *input : inputs) {
            input = stock_dense(ctx, input);
            if (!form.in_order) {
                ggml_tensor *rows = graph.shared_input(
                    given.rows, number, [&] { return graph.new_input(GGML_TYPE_I32, {n_rows}, "state_rows"); });
                ggml_tensor *taken = ggml_get_rows(ctx, flat(ctx, input, p.lead), rows);
                const int64_t n = input->ne[0];
                input = ggml_reshape_3d(ctx, taken, n, taken->ne[0] / n, n_rows);
            }
            streams.inputs.push_back(input);
        }
        if (part.stream_rows > 1) // in streams of one row, padding is whole streams
            streams.mask = graph.shared_input(given.masks, number,
                                              [&] { return graph.new_input(GGML_TYPE_F32, {n_rows}, "state_mask"); });
        const StreamsMade made = make(streams);
        write_states(p, number, made.states, states.handle());
        all = all == nullptr ? made.rows : ggml_concat(ctx, all, made.rows, 1);
    }
    if (!form.in_order) {
        if (given.places == nullptr) given.places = graph.new_input(GGML_TYPE_I32, {p.lead}, "state_places");
        all = ggml_get_rows(ctx, all, given.places);
    }
    const std::array<int64_t, 4> ne = stock_dims(p.shape, p.lead);
    return ggml_reshape_4d(ctx, stock_dense(ctx, all), ne[0], ne[1], ne[2], ne[3]);
}

bool runs_by_streams(Device device, const std::vector<TraceShape> &inputs, int64_t n_state,
                     const std::function<StreamsMade(const StateStreams &)> &make) {
    constexpr size_t most_tensors = 256;
    constexpr int64_t n_streams = 2, stream_rows = 8;
    ggml_init_params params{ggml_tensor_overhead() * most_tensors + ggml_graph_overhead_custom(most_tensors, false),
                            nullptr, true};
    const std::unique_ptr<ggml_context, FreeContext> context(ggml_init(params));
    if (!context) throw CapacityError("lower", "out of memory: records of a graph");
    ggml_context *ctx = context.get();
    StateStreams streams{ctx,
                         n_streams,
                         stream_rows,
                         {},
                         ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_state, n_streams + 1),
                         ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n_streams),
                         ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n_streams * stream_rows),
                         [ctx](const WeightRef &weight) { return ggml_dup_tensor(ctx, weight->tensor.handle()); }};
    for (const TraceShape &shape : inputs)
        streams.inputs.push_back(ggml_new_tensor(ctx, GGML_TYPE_F32, 4, stock_dims(shape, streams.n_rows()).data()));
    ggml_cgraph *graph = ggml_new_graph_custom(ctx, most_tensors, false);
    const StreamsMade made = make(streams);
    ggml_build_forward_expand(graph, made.rows);
    ggml_build_forward_expand(graph, made.states);
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i)
        if (!ggml_backend_dev_supports_op(device.handle(), ggml_graph_node(graph, i))) return false;
    return true;
}

ggml_tensor *stock_seen(const StockParts &p, ggml_tensor *x, const Tensor &states, SeenRows rows) {
    StockGraph &graph = *p.graph;
    ggml_context *ctx = p.context;
    StateInputs &given = graph.out.inputs.states;
    const int64_t n_streams = graph.out.key.states.n_streams(), n_past = rows.n_past, n = x->ne[0];
    ggml_tensor *kept = ggml_get_rows(ctx, states.handle(), reads_of(p, StateInputs::all, n_streams));
    ggml_tensor *there = ggml_concat(ctx, ggml_reshape_2d(ctx, kept, n, n_past * n_streams), stock_dense(ctx, x), 1);
    ggml_tensor *kept_then = graph.shared_input(
        given.kept, rows.n_past, [&] { return graph.new_input(GGML_TYPE_I32, {n_past * n_streams}, "kept_rows"); });
    write_states(p, StateInputs::all, ggml_reshape_2d(ctx, ggml_get_rows(ctx, there, kept_then), n * n_past, n_streams),
                 states.handle());
    ggml_tensor *seen = graph.shared_input(
        given.seen, rows, [&] { return graph.new_input(GGML_TYPE_I32, {rows.n() * p.lead}, "seen_rows"); });
    return ggml_reshape_3d(ctx, ggml_get_rows(ctx, there, seen), n, rows.n(), p.lead);
}

} // namespace quire
