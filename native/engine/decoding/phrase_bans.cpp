#include "engine/decoding/phrase_bans.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace quire {
namespace {

constexpr int most_in_a_row = 1000;

char folded(char byte) { return byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte - 'A' + 'a') : byte; }

} // namespace

PhraseBans::PhraseBans(std::vector<std::string> phrases) {
    for (std::string &text : phrases) {
        if (text.empty()) throw RequestError("banned_strings", "empty phrase");
        std::ranges::transform(text, text.begin(), folded);
        Pattern pattern{std::move(text), {}};
        pattern.fallback.assign(pattern.text.size(), 0);
        for (size_t i = 1, length = 0; i < pattern.text.size(); ++i) {
            while (length > 0 && pattern.text[i] != pattern.text[length]) length = pattern.fallback[length - 1];
            if (pattern.text[i] == pattern.text[length]) ++length;
            pattern.fallback[i] = length;
        }
        patterns_.push_back(std::move(pattern));
    }
    n_matched_.assign(patterns_.size(), 0);
    places_.push_back({0, n_matched_});
}

// One more byte.  The place where the longest phrase begins that is complete now and may not stay.
std::optional<size_t> PhraseBans::completed(char byte) {
    ++n_bytes_;
    std::optional<size_t> first;
    for (size_t i = 0; i < patterns_.size(); ++i) {
        const Pattern &pattern = patterns_[i];
        size_t &n = n_matched_[i];
        while (n > 0 && byte != pattern.text[n]) n = pattern.fallback[n - 1];
        if (byte == pattern.text[n]) ++n;
        if (n < pattern.text.size()) continue;
        const int64_t begin = n_bytes_ - static_cast<int64_t>(n);
        n = pattern.fallback[n - 1];
        // The last token that begins there or before; those without bytes come before the one with the byte.
        size_t place = places_.size() - 1;
        while (places_[place].begin > begin) --place;
        if (!places_[place].may_change) place = places_.size() - 1; // nothing else can begin there: end otherwise
        if (places_[place].may_change) first = std::min(first.value_or(place), place);
    }
    return first;
}

size_t PhraseBans::take_back(size_t index) {
    if (++n_in_a_row_ > most_in_a_row)
        throw RequestError("banned_strings", cat("every continuation that was tried completes a banned phrase: gave up "
                                                 "after ",
                                                 most_in_a_row));
    const size_t n = places_.size() - index;
    places_.resize(index + 1);
    Place &place = places_.back();
    place.banned.insert(std::ranges::upper_bound(place.banned, place.token), place.token);
    place.token = -1;
    n_matched_ = place.n_matched;
    n_bytes_ = place.begin;
    return n;
}

// A phrase that is pending may take the text back to a place where another one was, which began before that, and so on.
size_t PhraseBans::n_released() const {
    size_t first = places_.size() - 1;
    int64_t pending = n_bytes_; // first byte of any of them
    while (true) {
        const Place &place = places_[first];
        pending = std::min(pending, place.begin - static_cast<int64_t>(*std::ranges::max_element(place.n_matched)));
        if (first == 0 || place.begin <= pending) return first; // where the one before it ends
        --first;
    }
}

PhraseBans::Verdict PhraseBans::push(int32_t token, std::string_view bytes) {
    Place &next = places_.back();
    next.token = token;
    next.may_change = !std::ranges::binary_search(next.banned, token);
    for (char byte : bytes)
        if (const auto place = completed(folded(byte))) return {take_back(*place), 0};
    places_.push_back({n_bytes_, n_matched_});
    const size_t n = n_released();
    places_.erase(places_.begin(), places_.begin() + static_cast<ptrdiff_t>(n));
    if (n > 0) n_in_a_row_ = 0;
    return {0, n};
}

} // namespace quire
