// Proposes the tokens that a grammar forces: they will be drawn.
#pragma once

#include <algorithm>

#include "engine/drafting/drafter.h"

namespace quire {

// The masks tell which tokens these are (engine/decoding/grammar_mask.h).  Other drafters propose those that follow.
class GrammarDrafter : public Drafter {
  public:
    std::string name() const override { return "grammar"; }
    void propose(std::span<DraftWish *const> wishes) override {
        for (DraftWish *wish : wishes) {
            const size_t n = std::min(wish->forced.size(), static_cast<size_t>(std::max(wish->most, 0)));
            wish->proposal.assign(wish->forced.begin(), wish->forced.begin() + static_cast<ptrdiff_t>(n));
        }
    }
    void forget(SequenceId, std::span<const int32_t>) override {}
    bool is_certain() const override { return true; }
};

} // namespace quire
