#include "engine/drafting/lookup_drafter.h"

#include <algorithm>

namespace quire {
namespace {

constexpr int32_t shortest_match = 2; // one token occurs nearly everywhere
constexpr int32_t separator = -1;     // no token

int kind_of(int32_t length) { return length < 4 ? 0 : length < 8 ? 1 : length < 16 ? 2 : 3; }

void copy(std::span<const int32_t> answers, DraftWish &wish) {
    for (int32_t token : answers.first(std::min(answers.size(), static_cast<size_t>(wish.most)))) {
        if (token == AnswerStore::separator) return;
        wish.proposal.push_back(token);
    }
}

// The tokens that followed, and at the end of the text those proposed already: a repetition goes on.
void continue_from(const std::vector<int32_t> &text, size_t next, DraftWish &wish) {
    for (int i = 0; i < wish.most; ++i, ++next) {
        const int32_t token = next < text.size() ? text[next] : wish.proposal[next - text.size()];
        if (token == separator) return;
        wish.proposal.push_back(token);
    }
}

} // namespace

void LookupDrafter::read(Text &text, const DraftWish &wish) {
    SuffixAutomaton &automaton = text.automaton;
    if (automaton.text().empty()) text.salt = wish.salt;
    if (automaton.text().empty() && !wish.prediction.empty()) {
        for (int32_t token : wish.prediction) automaton.append(token);
        automaton.append(separator);
        text.n_before = automaton.text().size();
    }
    for (size_t i = automaton.text().size() - text.n_before; i < wish.tokens.size(); ++i) {
        automaton.append(wish.tokens[i]);
        if (static_cast<int64_t>(i) < wish.n_prompt || !text.as_predicted) continue;
        text.as_predicted =
            text.n_predicted < wish.prediction.size() && wish.prediction[text.n_predicted] == wish.tokens[i];
        text.n_predicted += text.as_predicted;
    }
}

void LookupDrafter::forget(SequenceId sequence, std::span<const int32_t> answer) {
    const auto text = texts_.find(sequence);
    if (text == texts_.end()) return; // nothing was looked up for it, so neither will it serve others
    answers_.add(text->second.salt, answer);
    texts_.erase(text);
}

void LookupDrafter::propose(std::span<DraftWish *const> wishes) {
    for (DraftWish *wish : wishes) {
        Text &text = texts_[wish->sequence];
        read(text, *wish);
        if (text.automaton.text().size() - text.n_before != wish->tokens.size()) continue; // it was read further before
        const SuffixAutomaton::Match &match = text.automaton.match();
        const AnswerStore::Found earlier = answers_.find(text.salt, wish->tokens, text.cursor);
        if (text.as_predicted && text.n_predicted > 0 && text.n_predicted < wish->prediction.size()) {
            wish->kind = n_draft_kinds - 1;
            continue_from(text.automaton.text(), text.n_predicted, *wish);
        } else if (earlier.length > match.length && earlier.length >= shortest_match) {
            wish->kind = kind_of(earlier.length);
            copy(earlier.next, *wish);
        } else if (match.length >= shortest_match) {
            wish->kind = kind_of(match.length);
            continue_from(text.automaton.text(), static_cast<size_t>(match.next), *wish);
        }
    }
}

} // namespace quire
