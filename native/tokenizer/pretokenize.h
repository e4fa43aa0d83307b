// Pre-tokenizers: each published regular expression as a scanner written by hand, linear in the text.
// A pre-tokenizer is a list of passes; each pass splits the pieces of the pass before it.
#pragma once

#include <cstddef>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "unicode.h"

namespace quire::tokenizer {

// One regular expression (matches and what lies between them are pieces).  python/quire/tokenizer/pretokenizers.py
// has the expressions.
enum class Pass { gpt2, llama3, qwen2, digits, number_runs, digit_triples, punctuation_runs };

inline Pass pass_named(std::string_view name) {
    constexpr std::string_view names[] = {"gpt2",        "llama3",        "qwen2",           "digits",
                                          "number_runs", "digit_triples", "punctuation_runs"};
    for (size_t i = 0; i < std::size(names); ++i)
        if (names[i] == name) return static_cast<Pass>(i);
    throw std::invalid_argument("a pass must be one that the scanners know but is '" + std::string(name) + "'");
}

// Scanners return the end of the piece that begins at `at`; a text ends at `end` for look-ahead too.
class Scanner {
  public:
    Scanner(const char *text, size_t end) : text_(text), end_(end) {}

    size_t next(Pass pass, size_t at) const {
        switch (pass) {
        case Pass::gpt2: return gpt2(at);
        case Pass::llama3: return tiktoken(at, 3);
        case Pass::qwen2: return tiktoken(at, 1);
        case Pass::digits: return isolated(at, 1, [](const Character &c) { return (c.classes & number) != 0; });
        case Pass::number_runs: return isolated(at, 0, [](const Character &c) { return (c.classes & number) != 0; });
        case Pass::digit_triples: return digit_triples(at);
        case Pass::punctuation_runs: return isolated(at, 0, is_default_punctuation);
        }
        return end_;
    }

  private:
    Character get(size_t at) const { return character_at(text_, at, end_); }

    static bool is_default_punctuation(const Character &c) {
        return (c.classes & punctuation) != 0 ||
               (c.code < 0x80 &&
                std::string_view("$+<=>^~|").find(static_cast<char>(c.code)) != std::string_view::npos);
    }

    // The end of the run of characters with (or without) some of `classes`.
    template <bool with> size_t run(size_t at, Classes classes) const {
        while (at < end_) {
            const Character c = get(at);
            if (((c.classes & classes) != 0) != with) break;
            at += c.n_bytes;
        }
        return at;
    }

    // 's 't 're 've 'm 'll 'd: the length of the one at `at`, or 0.  Ignoring case, the long s is an s too.
    size_t contraction(size_t at, bool ignore_case) const {
        if (text_[at] != '\'' || at + 1 >= end_) return 0;
        auto lower = [&](size_t i) {
            const char c = i < end_ ? text_[i] : '\0';
            return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        };
        const char first = lower(at + 1), second = lower(at + 2);
        if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
        if ((first == 'r' || first == 'v') && second == 'e') return 3;
        if (first == 'l' && second == 'l') return 3;
        if (ignore_case && get(at + 1).code == 0x17f) return 3;
        return 0;
    }

    // \s+(?!\S)|\s+ at white space: all of the run that ends at `end` if the text does, else all but its last
    // character.
    size_t spaces(size_t at, size_t end) const {
        if (end == end_) return end;
        const size_t last = end - character_before(text_, at, end).n_bytes;
        return last > at ? last : end;
    }

    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
    size_t gpt2(size_t at) const {
        if (const size_t n = contraction(at, false)) return at + n;
        const size_t body = text_[at] == ' ' && at + 1 < end_ ? at + 1 : at;
        const Character c = get(body);
        if (c.classes & letter) return run<true>(body + c.n_bytes, letter);
        if (c.classes & number) return run<true>(body + c.n_bytes, number);
        if (!(c.classes & white_space)) return run<false>(body + c.n_bytes, letter | number | white_space);
        return spaces(at, run<true>(at, white_space));
    }

    // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,max_digits}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
    // \s+(?!\S)|\s+
    size_t tiktoken(size_t at, int max_digits) const {
        if (const size_t n = contraction(at, true)) return at + n;
        const Character first = get(at);
        if (first.classes & letter) return run<true>(at + first.n_bytes, letter);
        if (first.classes & number) {
            size_t end = at + first.n_bytes;
            for (int i = 1; i < max_digits && end < end_; ++i) {
                const Character c = get(end);
                if (!(c.classes & number)) break;
                end += c.n_bytes;
            }
            return end;
        }
        const size_t after = at + first.n_bytes;
        const bool line_end = first.code == '\r' || first.code == '\n';
        if (!line_end && after < end_) {
            const Character second = get(after);
            if (second.classes & letter) return run<true>(after + second.n_bytes, letter);
        }
        const size_t body = first.code == ' ' && after < end_ ? after : at;
        if (!(get(body).classes & (letter | number | white_space))) {
            size_t end = run<false>(body, letter | number | white_space);
            while (end < end_ && (text_[end] == '\r' || text_[end] == '\n')) ++end;
            return end;
        }
        const size_t end = run<true>(at, white_space);
        for (size_t i = end; i > at; --i)
            if (text_[i - 1] == '\r' || text_[i - 1] == '\n') return i;
        return spaces(at, end);
    }

    // Runs of at most `max_run` (0: any number) characters that `is_match` takes, and what lies between such.
    template <class IsMatch> size_t isolated(size_t at, int max_run, IsMatch is_match) const {
        const Character first = get(at);
        const bool match = is_match(first);
        at += first.n_bytes;
        for (int n = 1; at < end_ && !(match && max_run != 0 && n >= max_run); ++n) {
            const Character c = get(at);
            if (is_match(c) != match) break;
            at += c.n_bytes;
        }
        return at;
    }

    bool is_triple(size_t at) const {
        if (end_ - at < 3) return false;
        for (size_t i = at; i < at + 3; ++i)
            if (text_[i] < '0' || text_[i] > '9') return false;
        return true;
    }

    // [0-9][0-9][0-9]
    size_t digit_triples(size_t at) const {
        if (is_triple(at)) return at + 3;
        while (at < end_ && !is_triple(at)) ++at;
        return at;
    }

    const char *text_;
    size_t end_;
};

// Give `sink(begin, end)` every piece of text[begin, end) after the passes from `pass` on.
template <class Sink>
void split(const std::vector<Pass> &passes, size_t pass, const char *text, size_t begin, size_t end, Sink &&sink) {
    if (pass == passes.size()) {
        sink(begin, end);
        return;
    }
    const Scanner scanner(text, end);
    const bool last = pass + 1 == passes.size();
    while (begin < end) {
        const size_t stop = scanner.next(passes[pass], begin);
        if (last) {
            sink(begin, stop);
        } else {
            split(passes, pass + 1, text, begin, stop, sink);
        }
        begin = stop;
    }
}

} // namespace quire::tokenizer
