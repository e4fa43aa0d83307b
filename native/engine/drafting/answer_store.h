// Earlier answers, to look up the tokens that followed in them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "engine/drafting/suffix_automaton.h"

namespace quire {

// Answers never serve another salt, as with cached blocks.  Memory is bounded: when a salt's part is full, its older half
// is evicted, and the least recently used salts are evicted first.
class AnswerStore {
  public:
    static constexpr int32_t separator = -1; // ends an answer; no token

    explicit AnswerStore(size_t most_tokens = 1 << 17) : most_tokens_(most_tokens) {}

    void add(const std::string &salt, std::span<const int32_t> answer);

    // How far a text was looked up.
    struct Cursor {
        struct InPart {
            uint64_t part = 0;
            SuffixAutomaton::Cursor at;
            size_t n_read = 0;
        };
        std::array<InPart, 2> parts;
    };
    struct Found {
        int32_t length = 0;            // longest end of the text that occurs in an answer
        std::span<const int32_t> next; // from there to the end of all answers
    };
    // Tokens that were read before must be the same.
    Found find(const std::string &salt, std::span<const int32_t> tokens, Cursor &cursor);
    size_t n_tokens() const { return n_tokens_; }

  private:
    struct Part {
        uint64_t number;
        SuffixAutomaton answers;
    };
    struct Salted {
        std::array<std::unique_ptr<Part>, 2> parts; // the one that grows, and the one before
        uint64_t used = 0;
    };
    static size_t size(const Salted &salted);
    void make_room(const std::string &salt);

    size_t most_tokens_, n_tokens_ = 0;
    uint64_t n_parts_ = 0, clock_ = 0;
    std::unordered_map<std::string, Salted> salts_;
};

} // namespace quire
