#include "engine/drafting/answer_store.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

constexpr size_t most_salts = 1024;
constexpr size_t longest_match = 64; // more is not looked at where a text is new to a part

} // namespace

size_t AnswerStore::size(const Salted &salted) {
    size_t n = 0;
    for (const auto &part : salted.parts) n += part ? part->answers.text().size() : 0;
    return n;
}

void AnswerStore::make_room(const std::string &salt) {
    while ((n_tokens_ > most_tokens_ || salts_.size() > most_salts) && salts_.size() > 1) {
        auto oldest = salts_.end();
        for (auto entry = salts_.begin(); entry != salts_.end(); ++entry)
            if (entry->first != salt && (oldest == salts_.end() || entry->second.used < oldest->second.used))
                oldest = entry;
        n_tokens_ -= size(oldest->second);
        salts_.erase(oldest);
    }
}

void AnswerStore::add(const std::string &salt, std::span<const int32_t> answer) {
    const size_t half = most_tokens_ / 2;
    if (answer.empty() || half < 2) return;
    answer = answer.last(std::min(answer.size(), half - 1));
    Salted &salted = salts_[salt];
    salted.used = ++clock_;
    auto &[growing, before] = salted.parts;
    if (growing && growing->answers.text().size() + answer.size() + 1 > half) {
        n_tokens_ -= before ? before->answers.text().size() : 0;
        before = std::move(growing);
    }
    if (!growing) growing = std::make_unique<Part>(Part{++n_parts_, {}});
    for (int32_t token : answer) growing->answers.append(token);
    growing->answers.append(separator);
    n_tokens_ += answer.size() + 1;
    make_room(salt);
}

AnswerStore::Found AnswerStore::find(const std::string &salt, std::span<const int32_t> tokens, Cursor &cursor) {
    Found found;
    const auto entry = salts_.find(salt);
    if (entry == salts_.end()) return found;
    entry->second.used = ++clock_;
    for (const auto &part : entry->second.parts) {
        if (!part) continue;
        auto known = std::ranges::find(cursor.parts, part->number, &Cursor::InPart::part);
        if (known == cursor.parts.end()) { // in place of one that is gone, or of none
            known = std::ranges::min_element(cursor.parts, {}, &Cursor::InPart::part);
            *known = {part->number, {}, tokens.size() - std::min(tokens.size(), longest_match)};
        }
        for (; known->n_read < tokens.size(); ++known->n_read) part->answers.follow(known->at, tokens[known->n_read]);
        const SuffixAutomaton::Match match = part->answers.match(known->at);
        if (match.length > found.length)
            found = {match.length, std::span(part->answers.text()).subspan(static_cast<size_t>(match.next))};
    }
    return found;
}

} // namespace quire
