#include "engine/decoding/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace quire {

StopMatcher::StopMatcher(std::vector<std::string> stop_strings, StopText mode) : mode_(mode) {
    for (std::string &text : stop_strings) {
        if (text.empty()) throw RequestError("stop", "empty stop string");
        Pattern pattern{std::move(text), {}, 0};
        pattern.fallback.assign(pattern.text.size(), 0);
        for (size_t i = 1, length = 0; i < pattern.text.size(); ++i) {
            while (length > 0 && pattern.text[i] != pattern.text[length]) length = pattern.fallback[length - 1];
            if (pattern.text[i] == pattern.text[length]) ++length;
            pattern.fallback[i] = length;
        }
        patterns_.push_back(std::move(pattern));
    }
}

// One more byte; n_matched is then the longest end of the text that begins the pattern.  True at the whole pattern,
// after which it is not asked again.
bool StopMatcher::Pattern::advance(char byte) {
    while (n_matched > 0 && byte != text[n_matched]) n_matched = fallback[n_matched - 1];
    if (byte == text[n_matched]) ++n_matched;
    return n_matched == text.size();
}

// Runs the patterns over what is new in held_ and takes from it what may be shown.
std::string StopMatcher::scan() {
    while (n_scanned_ < held_.size()) {
        const char byte = held_[n_scanned_++];
        size_t longest = 0;
        for (size_t i = 0; i < patterns_.size(); ++i) {
            if (!patterns_[i].advance(byte) || patterns_[i].text.size() <= longest) continue;
            longest = patterns_[i].text.size();
            matched_ = i;
        }
        if (!matched_) continue;
        std::string shown = held_.substr(0, mode_ == StopText::include ? n_scanned_ : n_scanned_ - longest);
        held_.clear();
        return shown;
    }
    size_t n_kept = 0; // bytes that may begin a stop string
    for (const Pattern &pattern : patterns_) n_kept = std::max(n_kept, pattern.n_matched);
    std::string shown = held_.substr(0, held_.size() - n_kept);
    held_.erase(0, held_.size() - n_kept);
    n_scanned_ = held_.size();
    return shown;
}

std::string StopMatcher::push(std::string_view bytes) {
    if (matched_) return {};
    decoder_.push(bytes, held_);
    return scan();
}

std::string StopMatcher::finish() {
    if (matched_) return {};
    decoder_.finish(held_);
    std::string shown = scan();
    shown += std::exchange(held_, {});
    n_scanned_ = 0;
    for (Pattern &pattern : patterns_) pattern.n_matched = 0;
    return shown;
}

} // namespace quire
