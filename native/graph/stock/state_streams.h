// Shared parts of operations with a state, as ggml's operators on devices (see graph/stock/state_plan.h for streams).
#pragma once

#include <functional>
#include <vector>

#include "graph/stock/state_plan.h"
#include "graph/stock/stock_parts.h"

namespace quire {

class Tensor;

// The streams of one part.
struct StateStreams {
    ggml_context *context;
    int64_t n_streams, stream_rows;
    std::vector<ggml_tensor *>
        inputs; // dense, with all rows of the streams; inputs with one number per head may be flat
    ggml_tensor *pool; // f32 {n, slots}: states
    ggml_tensor *slots; // i32 {n_streams}: the slots of the streams' first states
    ggml_tensor *mask; // f32 {rows}: 0 for rows that leave the state unchanged; null if there are none
    std::function<ggml_tensor *(const WeightRef &)> weight;

    int64_t n_rows() const { return n_streams * stream_rows; }
    ggml_tensor *states() const { return ggml_get_rows(context, pool, slots); } // {n, n_streams}
    // An input times the mask, {n, rows}.
    ggml_tensor *masked(ggml_tensor *x) const;
    ggml_tensor *by_stream(ggml_tensor *x, int64_t a, int64_t b) const {
        return ggml_reshape_4d(context, x, a, b, stream_rows, n_streams);
    }
};

// The results of a part: its rows, {values of a row, rows}, and the states after them, {n, n_streams}.
struct StreamsMade {
    ggml_tensor *rows, *states;
};
// Splits the one array that ggml's operators return: results, then states.
StreamsMade stock_split(const StateStreams &streams, ggml_tensor *made, int64_t row_floats);

// Runs all parts of a step: splits inputs, restores the order of rows in the result, and writes the states.
ggml_tensor *stock_by_streams(const StockParts &parts, const std::vector<ggml_tensor *> &inputs, const Tensor &states,
                              const std::function<StreamsMade(const StateStreams &)> &make);
// True if the device supports every node of `make`.  `inputs`: their shapes.
bool runs_by_streams(Device device, const std::vector<TraceShape> &inputs, int64_t n_state,
                     const std::function<StreamsMade(const StateStreams &)> &make);

// For operations whose state is earlier rows: returns the rows that each row sees, f32 {n, rows.n(), lead}, and updates
// the state.
ggml_tensor *stock_seen(const StockParts &parts, ggml_tensor *x, const Tensor &states, SeenRows rows);

ggml_tensor *stock_dense(ggml_context *context, ggml_tensor *x);

} // namespace quire
