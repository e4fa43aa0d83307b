// Phrases that must not appear in an answer's text: finds them, and remembers which tokens they forbid where.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// Follows the tokens of one choice.  Where a phrase is complete, the text goes back to the token with which it began:
// that token is forbidden there, and so is each other one that has been tried in its place.  Letters A to Z match in
// either case.  Tokens are *held* while a phrase that reaches into them may still be completed.
class PhraseBans {
  public:
    explicit PhraseBans(std::vector<std::string> phrases);

    bool empty() const { return patterns_.empty(); }
    // Ascending: tokens that are forbidden in the place of the next one.
    std::span<const int32_t> here() const { return places_.back().banned; }
    struct Verdict {
        size_t n_taken_back = 0; // the last tokens, this one included
        size_t n_released = 0;   // held tokens, from the first on, that stay
    };
    // The next token, with the bytes that it shows.  A token that is forbidden here was drawn as nothing else is
    // possible: then the last token of a phrase changes in place of it, or the phrase stays.  RequestError where the
    // text goes back again and again.
    Verdict push(int32_t token, std::string_view bytes);

  private:
    // One phrase with the prefix function of Knuth, Morris and Pratt (1977).
    struct Pattern {
        std::string text;
        std::vector<size_t> fallback;
    };
    // A held token, or the next one.
    struct Place {
        int64_t begin = 0;              // number of its first byte
        std::vector<size_t> n_matched;  // bytes of each pattern that end the text before it
        std::vector<int32_t> banned = {};
        int32_t token = -1;
        bool may_change = true; // another token may still be possible
    };
    std::optional<size_t> completed(char byte);
    size_t take_back(size_t place);
    size_t n_released() const;

    std::vector<Pattern> patterns_;
    std::vector<size_t> n_matched_;
    std::deque<Place> places_; // the last one is the next token's
    int64_t n_bytes_ = 0;
    int n_in_a_row_ = 0; // times that the text went back since a token was released
};

} // namespace quire
