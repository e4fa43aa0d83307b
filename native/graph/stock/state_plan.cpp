#include "graph/stock/state_plan.h"

#include <algorithm>
#include <map>

#include "graph/stock/attention_plan.h"

namespace quire {
namespace {

// Sizes of streams: 1, 4, 16, 64, ...  A sequence fills more than a quarter of its stream.
int most_rows_of_part(int n) {
    int most = 1;
    while (most < n) most *= 4;
    return most;
}

} // namespace

int StateForm::n_streams() const {
    int n = 0;
    for (const StatePart &part : parts) n += part.n_streams;
    return n;
}

StatePlanner::StatePlanner(const Trace &trace, int max_sequences, bool on_device)
    : has_states_(on_device &&
                  std::ranges::any_of(trace.operations, [](const Operation &each) { return each.kind->has_state(); })),
      max_sequences_(max_sequences) {}

StatePlan StatePlanner::plan(const StepBatch &batch, int n_tokens) const {
    StatePlan plan;
    if (!has_states_) return plan;
    std::map<int, std::vector<StateRun>> parts; // by stream size
    for (size_t s = 0; s + 1 < batch.row_begin.size(); ++s) {
        const int begin = batch.row_begin[s], n = batch.row_begin[s + 1] - begin;
        std::vector<StateRun> &runs = parts[most_rows_of_part(n)];
        runs.push_back({static_cast<int>(runs.size()), static_cast<int>(s), begin, n});
    }
    for (auto &[most, runs] : parts) {
        int rows = 1;
        for (const StateRun &run : runs) rows = std::max(rows, run.n);
        const auto n_streams = static_cast<int>(runs.size());
        StatePart part{n_streams, padded_rows(rows, most)};
        // A single stream uses the step's rows without a copy.
        if (parts.size() == 1 && n_streams == 1)
            part.stream_rows = n_tokens;
        else if (most == 1)
            part.n_streams = parts.size() == 1 ? n_tokens : padded_rows(n_streams, n_tokens);
        plan.form.parts.push_back(part);
        plan.runs.push_back(std::move(runs));
    }
    const StatePart &first = plan.form.parts.front();
    plan.form.in_order = plan.form.parts.size() == 1 && first.n_rows() == n_tokens &&
                         std::ranges::all_of(plan.runs.front(), [&](const StateRun &run) {
                             return run.stream * first.stream_rows == run.begin;
                         });
    return plan;
}

std::vector<StateForm> StatePlanner::largest(int n_tokens) const {
    if (!has_states_) return {{}};
    std::vector<StateForm> forms{{{{1, n_tokens}}, true}};
    const int n_streams = std::min(max_sequences_, n_tokens);
    if (n_streams == n_tokens) forms.push_back({{{n_streams, 1}}, true});
    if (n_streams > 1) forms.push_back({{{n_streams - 1, 1}, {1, n_tokens}}, false});
    return forms;
}

} // namespace quire
