// Pre-tokenizers: a list of passes, each of which splits the pieces of the previous one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "automaton.h"
#include "unicode.h"

namespace quire::tokenizer {

// The treatment of a pass's matches and of the gaps between them (Hugging Face's `SplitDelimiterBehavior`).
enum class Behavior : int32_t {
    isolated,             // each match and each gap is a piece
    removed,              // only gaps are pieces
    merged_with_previous, // a match is joined to the gap before it
    merged_with_next,     // a match is joined to the gap after it
    contiguous,           // adjacent matches are one piece
};

// Passes without an expression: digits in groups of three from the right, which would need unbounded look-ahead.
enum class DigitGroups : int32_t {
    cuts,       // (?=(\d{3})+(?!\d))
    word_ends,  // \d{1,3}(?=(?:\d{3})*\b)
    numbers,    // \p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))
};

class Pass {
  public:
    // Throws std::invalid_argument, naming the expression, if it is unsupported.
    Pass(std::string_view expression, Behavior behavior, bool inverted) : behavior_(behavior), inverted_(inverted) {
        try {
            automaton_.emplace(expression);
        } catch (const std::invalid_argument &error) {
            throw std::invalid_argument("the expression '" + std::string(expression) + "' " + error.what());
        }
    }
    explicit Pass(DigitGroups groups) : groups_(groups) {}

    // Call `sink(begin, end)` for every piece of text[begin, end).
    template <class Sink> void split(const char *text, size_t begin, size_t end, Sink &&sink) const {
        if (!automaton_) return split_digits(text, begin, end, sink);
        if (behavior_ != Behavior::isolated) return split_joining(text, begin, end, sink);
        size_t at = begin, gap = begin;
        while (at < end) {
            const size_t stop = automaton_->match(text, at, end);
            if (stop == at) {
                at = automaton_->after_failure(text, at, end);
                continue;
            }
            if (gap < at) sink(gap, at);
            sink(at, stop);
            at = gap = stop;
        }
        if (gap < end) sink(gap, end);
    }

  private:
    template <class Sink> void split_joining(const char *text, size_t begin, size_t end, Sink &&sink) const {
        size_t from = begin; // start of the pending piece, which ends at `at`
        bool was_match = false;
        auto part = [&](size_t at, size_t stop, bool matched) {
            const bool is_match = matched != inverted_;
            bool joins = false;
            switch (behavior_) {
            case Behavior::isolated: break;
            case Behavior::removed: break;
            case Behavior::merged_with_previous: joins = is_match && !was_match; break;
            case Behavior::merged_with_next: joins = was_match && !is_match; break;
            case Behavior::contiguous: joins = is_match == was_match; break;
            }
            if (!joins) {
                if (from < at && !(behavior_ == Behavior::removed && was_match)) sink(from, at);
                from = at;
            }
            was_match = is_match;
            if (stop == end && !(behavior_ == Behavior::removed && is_match)) sink(from, end);
        };
        size_t at = begin, gap = begin;
        while (at < end) {
            const size_t stop = automaton_->match(text, at, end);
            if (stop == at) {
                at = automaton_->after_failure(text, at, end);
                continue;
            }
            if (gap < at) part(gap, at, false);
            part(at, stop, true);
            at = gap = stop;
        }
        if (gap < end) part(gap, end, false);
    }

    // After a digit, Oniguruma's \b matches before characters for which this is false.  Its \w excludes joiners and
    // includes Latin-1's superscripts and fractions.
    static bool goes_on(const Character &c) {
        const bool joiner = c.code == 0x200c || c.code == 0x200d;
        return (is_word(c) && !joiner) || (c.code < 0x100 && (c.classes & bit(Category::No)) != 0);
    }

    template <class Sink> void split_digits(const char *text, size_t begin, size_t end, Sink &&sink) const {
        size_t from = begin;
        auto cut = [&](size_t at) {
            if (from < at) sink(from, at);
            from = at;
        };
        std::vector<size_t> starts; // start of each digit in a run
        const bool isolates = groups_ != DigitGroups::cuts;
        const Classes digit = groups_ == DigitGroups::numbers ? number : bit(Category::Nd);
        for (size_t at = begin; at < end;) {
            starts.clear();
            Character c{};
            for (; at < end; at += c.n_bytes) {
                c = character_at(text, at, end);
                if (!(c.classes & digit)) break;
                starts.push_back(at);
            }
            const bool at_word_end = at == end || !goes_on(c);
            const size_t stop = at;
            if (at < end) at += c.n_bytes;
            if (starts.empty() || (groups_ == DigitGroups::word_ends && !at_word_end)) continue;
            if (isolates) cut(starts[0]);
            for (size_t i = 0; i < starts.size(); ++i)
                if ((starts.size() - i) % 3 == 0) cut(starts[i]);
            if (isolates) cut(stop);
        }
        cut(end);
    }

    std::optional<Automaton> automaton_;
    Behavior behavior_ = Behavior::isolated;
    bool inverted_ = false;
    DigitGroups groups_ = DigitGroups::cuts;
};

// Call `sink(begin, end)` for every piece of text[begin, end) after the passes from `pass` on.
template <class Sink>
void split(const std::vector<Pass> &passes, size_t pass, const char *text, size_t begin, size_t end, Sink &&sink) {
    if (pass == passes.size()) {
        if (begin < end) sink(begin, end);
    } else if (pass + 1 == passes.size()) {
        passes[pass].split(text, begin, end, sink);
    } else {
        passes[pass].split(text, begin, end,
                           [&](size_t from, size_t to) { split(passes, pass + 1, text, from, to, sink); });
    }
}

} // namespace quire::tokenizer
