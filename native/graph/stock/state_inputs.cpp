#include <algorithm>

#include "graph/stock/step_inputs.h"

namespace quire {
namespace {

// Calls `use(stream, run)` for the streams of a part, or of all parts with consecutive numbers; run is null for padding.
template <class Use> void for_streams(const StepToFill &step, int part, const Use &use) {
    int first = 0;
    for (int p = 0; p < static_cast<int>(step.states.runs.size()); ++p) {
        if (part != StateInputs::all && part != p) continue;
        const std::vector<StateRun> &runs = step.states.runs[static_cast<size_t>(p)];
        const int n = step.states.form.parts[static_cast<size_t>(p)].n_streams;
        for (int s = 0; s < n; ++s)
            use(first + s, s < static_cast<int>(runs.size()) ? &runs[static_cast<size_t>(s)] : nullptr);
        first += n;
    }
}

// By part: rows, slots, mask of padding.
void fill_streams(const StepToFill &step, const StateInputs &states) {
    const auto slot = [&](const StateRun &run) { return step.batch.states[static_cast<size_t>(run.sequence)]; };
    const auto rows_of = [&](int part) { return step.states.form.parts[static_cast<size_t>(part)].stream_rows; };
    for (auto [part, target] : states.rows) {
        auto *out = step.memory.host<int32_t>(target);
        std::fill(out, out + target->ne[0], 0);
        for_streams(step, part, [&](int stream, const StateRun *run) {
            for (int i = 0; run != nullptr && i < run->n; ++i) out[stream * rows_of(part) + i] = run->begin + i;
        });
    }
    for (auto [part, target] : states.masks) {
        auto *out = step.memory.host<float>(target);
        std::fill(out, out + target->ne[0], 0.0F);
        for_streams(step, part, [&](int stream, const StateRun *run) {
            if (run != nullptr) std::fill_n(out + stream * rows_of(part), run->n, 1.0F);
        });
    }
    for (auto [part, target] : states.reads)
        for_streams(step, part, [&, out = step.memory.host<int32_t>(target)](int stream, const StateRun *run) {
            out[stream] = run == nullptr ? 0 : slot(*run);
        });
    for (auto [part, target] : states.writes)
        for_streams(step, part, [&, out = step.memory.host<int64_t>(target)](int stream, const StateRun *run) {
            out[stream] = run == nullptr ? step.n_states : slot(*run);
        });
}

// The index of the stream's row `at`; negative ones are kept rows.
int32_t row_before(int stream, const StateRun &run, int at, int n_past, int n_streams) {
    return at < 0 ? stream * n_past + n_past + at : n_streams * n_past + run.begin + at;
}

void fill_seen(const StepToFill &step, const StateInputs &states) {
    const int n_streams = step.states.form.n_streams();
    for (auto [rows, target] : states.seen) {
        auto *out = step.memory.host<int32_t>(target);
        std::fill(out, out + target->ne[0], 0);
        for_streams(step, StateInputs::all, [&, rows = rows](int stream, const StateRun *run) {
            for (int i = 0; run != nullptr && i < run->n; ++i)
                for (int j = 0; j < rows.n(); ++j)
                    out[(run->begin + i) * rows.n() + j] =
                        row_before(stream, *run, i + j - rows.n_past, rows.n_past, n_streams);
        });
    }
    for (auto [n_past, target] : states.kept) {
        auto *out = step.memory.host<int32_t>(target);
        for_streams(step, StateInputs::all, [&, n_past = n_past](int stream, const StateRun *run) {
            for (int i = 0; i < n_past; ++i)
                out[stream * n_past + i] = run == nullptr
                                               ? stream * n_past + i
                                               : row_before(stream, *run, run->n + i - n_past, n_past, n_streams);
        });
    }
    if (states.places == nullptr) return;
    auto *out = step.memory.host<int32_t>(states.places);
    std::fill(out, out + states.places->ne[0], 0);
    int32_t first = 0; // row of the part
    for (size_t p = 0; p < step.states.runs.size(); ++p) {
        const StatePart &part = step.states.form.parts[p];
        for (const StateRun &run : step.states.runs[p])
            for (int i = 0; i < run.n; ++i) out[run.begin + i] = first + run.stream * part.stream_rows + i;
        first += part.n_rows();
    }
}

} // namespace

void fill_state_inputs(const StepToFill &step) {
    fill_streams(step, step.graph.inputs.states);
    fill_seen(step, step.graph.inputs.states);
}

} // namespace quire
