// How a step's rows meet the states of their sequences, in graphs of ggml's operators.
//
// Those take *streams*, one of each sequence, of equally many rows.  A step's sequences make parts by their numbers
// of rows: those that decode, and such as have some, more, many.  Streams are padded with rows that leave the state
// as it is, parts with streams that read the zero state and write to a slot that nobody reads.
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
    std::vector<StatePart> parts; // none: no operation of the trace has a state
    bool in_order = true; // rows of the one part are those of the step, in their order
    int n_streams() const;
    auto operator<=>(const StateForm &) const = default;
};

// The rows [begin, begin + n) of a step, which are those of one sequence.
struct StateRun {
    int stream; // in its part
    int sequence, begin, n;
};

struct StatePlan {
    StateForm form;
    std::vector<std::vector<StateRun>> runs; // by part
};

// How many rows before its own an operation looks at, and whether at its own as well.
struct SeenRows {
    int n_past;
    bool sees_own;
    int n() const { return n_past + static_cast<int>(sees_own); }
    auto operator<=>(const SeenRows &) const = default;
};

class StatePlanner {
  public:
    // `on_device`: on the CPU the states' operations take a step as it is.
    StatePlanner(const Trace &trace, int max_sequences, bool on_device);
    // `n_tokens`: the step's rows, padded.
    StatePlan plan(const StepBatch &batch, int n_tokens) const;
    // Forms that need much memory, for steps of n_tokens rows; never empty.
    std::vector<StateForm> largest(int n_tokens) const;

  private:
    bool has_states_;
    int max_sequences_;
};

} // namespace quire
