// Drafters propose tokens that may follow a sequence (docs/speculation.md).  A wrong proposal costs nothing but time:
// it does not change what is drawn.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/scheduling/sequence.h"

namespace quire {

inline constexpr int n_draft_kinds = 4;  // kinds of a drafter's proposals, by how sure it is: 0 the least
inline constexpr int model_draft_kind = 2; // for a model, which does not say how sure it is
inline constexpr int max_draft_depth = 64; // tokens of one proposal

using DrafterSet = uint32_t; // bit i for drafter i of a decoder

// A sequence that is about to draw a token, and the proposal for it.
struct DraftWish {
    SequenceId sequence{};
    std::span<const int32_t> tokens; // prompt and answer so far
    int64_t n_prompt = 0;
    int64_t max_tokens = 0;              // limit of the sequence
    std::span<const int32_t> prediction; // expected answer, as given with the request
    std::span<const int32_t> forced;     // tokens that a grammar forces
    std::string_view salt;               // only texts of one salt may learn from each other
    int most = 0;                        // so many tokens may be proposed
    std::vector<int32_t> proposal = {};
    int kind = 0;
};

// Used by one thread at a time.
class Drafter {
  public:
    virtual ~Drafter() = default;
    virtual std::string name() const = 0;
    // Fills the proposals, which are empty before, where it has something to propose.
    virtual void propose(std::span<DraftWish *const> wishes) = 0;
    // Ends the sequence, whose answer is this.
    virtual void forget(SequenceId sequence, std::span<const int32_t> answer) = 0;
    // True if proposing takes time that is worth counting.
    virtual bool costs_time() const { return false; }
    // Seconds that reading the wish's text will take, which comes before the first proposal for a sequence; 0: it was
    // read, or that is not known.
    virtual double reading_s(const DraftWish &) { return 0; }
    // Seconds of reading in the last propose().
    virtual double read_s() const { return 0; }
    // Numbers in a row of the model's features (Executor::features) that it reads, for all rows of its
    // sequences; 0: it reads none.
    virtual int n_features() const { return 0; }
    // A step had these rows of a sequence, from position `first` on; the last of them may be of drafted tokens.
    virtual void see(SequenceId, int64_t /*first*/, std::span<const float> /*features*/) {}
    // True if it proposes what a grammar forces: it comes first, is never wrong, and others are asked for what follows.
    virtual bool is_certain() const { return false; }
    virtual void close() {} // no more proposals: what it keeps elsewhere is written
};

} // namespace quire
