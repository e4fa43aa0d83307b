// Proposes the tokens that followed the last time: looks up the end of the text in prompt, answer, prediction and earlier
// answers.
#pragma once

#include <memory>
#include <unordered_map>

#include "engine/drafting/answer_store.h"
#include "engine/drafting/drafter.h"
#include "engine/drafting/suffix_automaton.h"

namespace quire {

// As in Saxena, "Prompt lookup decoding" (2023), but of any length, by a suffix automaton: Hu, Chen, Zhang, Zhou et
// al., "SAM decoding: speculative decoding via suffix automaton" (2024).  A proposal's kind tells how much of the end
// was found.  Where that is more in an earlier answer than in the text itself, what followed there is proposed.
class LookupDrafter : public Drafter {
  public:
    std::string name() const override { return "lookup"; }
    void propose(std::span<DraftWish *const> wishes) override;
    void forget(SequenceId sequence, std::span<const int32_t> answer) override;

  private:
    struct Text {
        SuffixAutomaton automaton;
        size_t n_before = 0; // tokens of the prediction and its end, which come before the prompt
        size_t n_predicted = 0; // leading tokens of the answer that are the prediction's
        bool as_predicted = true; // all of them are
        std::string salt;
        AnswerStore::Cursor cursor;
    };
    static void read(Text &text, const DraftWish &wish);
    std::unordered_map<SequenceId, Text> texts_;
    AnswerStore answers_;
};

} // namespace quire
