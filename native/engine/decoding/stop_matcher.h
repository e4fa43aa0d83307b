// Turns the bytes of generated tokens into text that is safe to show.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/decoding/utf8_decoder.h"

namespace quire {

enum class StopText { exclude, include }; // include: the stop string itself is shown

// Holds back incomplete characters and text that may become a stop string.  Bytes that are no UTF-8 become U+FFFD, one
// for each maximal ill-formed part (Unicode 3.9, Python's errors="replace").  The stop string whose end comes first
// wins, and of those that end together the longest.  The text does not depend on how the bytes were cut.
class StopMatcher {
  public:
    explicit StopMatcher(std::vector<std::string> stop_strings, StopText mode = StopText::exclude);

    // Takes more bytes; returns UTF-8 text that may be shown now.  After a stop: nothing.
    std::string push(std::string_view bytes);
    // Ends the bytes: returns the text that was held back.
    std::string finish();
    bool stopped() const { return matched_.has_value(); }
    // Index of the stop string that ended the text.
    std::optional<size_t> matched() const { return matched_; }

  private:
    // One stop string with the prefix function of Knuth, Morris and Pratt (1977).
    struct Pattern {
        std::string text;
        std::vector<size_t> fallback;
        size_t n_matched = 0;
        bool advance(char byte);
    };
    std::string scan();

    std::vector<Pattern> patterns_;
    StopText mode_;
    Utf8Decoder decoder_;
    std::string held_;     // text not shown yet
    size_t n_scanned_ = 0; // bytes of held_ that the patterns have seen
    std::optional<size_t> matched_;
};

} // namespace quire
