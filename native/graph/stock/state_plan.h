// How the rows of a step use the states of their sequences, in graphs of ggml's operators.
//
// These operators take *streams*, one per sequence, with equal numbers of rows.  The sequences of a step form parts by
// their number of rows, from decoding ones to long prompts.  Streams are padded with rows that leave the state
// unchanged, parts with streams that read the zero state and write to an unused slot.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

namespace quire {

struct StepBatch;
struct Trace;

struct StatePart {
    int n_streams, stream_rows;
    int n_rows() const { return n_streams * stream_rows; }
    auto operator<=>(const StatePart &) const = default;
};

struct StateForm {
    std::vector<StatePart> parts; // empty: no operation of the trace has a state
    bool in_order = true; // the only part has the rows of the step in their order
    int n_streams() const;
    auto operator<=>(const StateForm &) const = default;
};

// The rows [begin, begin + n) of a step, all of one sequence.
struct StateRun {
    int stream; // in its part
    int sequence, begin, n;
};

struct StatePlan {
    StateForm form;
    std::vector<std::vector<StateRun>> runs; // by part
};

// The number of earlier rows that an operation reads for a row, and whether it reads the row itself.
struct SeenRows {
    int n_past;
    bool sees_own;
    int n() const { return n_past + static_cast<int>(sees_own); }
    auto operator<=>(const SeenRows &) const = default;
};

class StatePlanner {
  public:
    // `on_device`: otherwise operations with states take the step as it is.
    StatePlanner(const Trace &trace, int max_sequences, bool on_device);
    // `n_tokens`: the padded number of rows of the step.
    StatePlan plan(const StepBatch &batch, int n_tokens) const;
    // Forms with large memory use, for steps of n_tokens rows; never empty.
    std::vector<StateForm> largest(int n_tokens) const;

  private:
    bool has_states_;
    int max_sequences_;
};

} // namespace quire
