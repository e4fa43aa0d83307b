// A drafter with a given rate of right tokens, to test and measure speculation.
#pragma once

#include <unordered_map>
#include <vector>

#include "engine/drafting/drafter.h"

namespace quire {

// Proposes the continuation of the first script (a prompt with its answer, computed before) that begins with the sequence.
// Each token is right with the probability `agreement`, decided by a hash of seed, sequence and position; a wrong token is
// the next id.
class ScriptedDrafter : public Drafter {
  public:
    // RequestError if `agreement` is outside 0 to 1.  `token_read_s`: the seconds that it reports for reading a token.
    ScriptedDrafter(std::vector<std::vector<int32_t>> scripts, double agreement, uint64_t seed, int32_t n_vocab,
                    double token_read_s = 0);
    std::string name() const override { return "scripted"; }
    void propose(std::span<DraftWish *const> wishes) override;
    void forget(SequenceId sequence, std::span<const int32_t>) override { chosen_.erase(sequence); }
    bool costs_time() const override { return token_read_s_ > 0; }
    double reading_s(const DraftWish &wish) override {
        return chosen_.contains(wish.sequence) ? 0 : token_read_s_ * static_cast<double>(wish.tokens.size());
    }

  private:
    int find(const DraftWish &wish) const;
    int32_t token(SequenceId sequence, int script, size_t position) const;
    std::vector<std::vector<int32_t>> scripts_;
    double agreement_;
    uint64_t seed_;
    int32_t n_vocab_;
    double token_read_s_;
    std::unordered_map<SequenceId, int> chosen_; // index of the sequence's script, -1 for none
};

} // namespace quire
