// Added tokens, which are matched literally before the rest of a text is tokenized: control and user-defined tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "unicode.h"

namespace quire::tokenizer {

struct AddedToken {
    int32_t id = 0;
    bool control = false;     // matched only if the caller parses control tokens
    bool left_strip = false;  // includes the white space before it
    bool right_strip = false; // includes the white space after it
    bool single_word = false; // matched only between characters that are not \w
};

// An untrusted part of a text: control tokens are not matched in it or across its ends.
struct Range {
    size_t begin, end;
};

enum class Control { plain, parsed };

struct MatchRules {
    Control control = Control::plain;
    const std::vector<Range> *literal = nullptr; // ascending, without overlaps; or null
};

// Finds the leftmost added tokens, of several at one place the longest, with a trie.
class AddedTokens {
  public:
    bool empty() const { return tokens_.empty(); }

    void add(std::string_view text, const AddedToken &token) {
        uint32_t node = 0;
        for (const char c : text) {
            const auto byte = static_cast<uint8_t>(c);
            uint32_t next = child(node, byte);
            if (next == 0) {
                next = static_cast<uint32_t>(nodes_.size());
                nodes_.push_back({});
                nodes_[next].sibling = nodes_[node].child, nodes_[next].byte = byte;
                nodes_[node].child = next;
            }
            node = next;
        }
        starts_[static_cast<uint8_t>(text[0])] = true;
        nodes_[node].token = static_cast<int32_t>(tokens_.size());
        tokens_.push_back(token);
    }

    // Call `text_piece(begin, end)` and `token(id)` for the parts of text[begin, end), in order.
    template <class TextPiece, class Token>
    void partition(const char *text, size_t begin, size_t end, const MatchRules &rules, TextPiece &&text_piece,
                   Token &&token) const {
        size_t pending = begin, at = begin;
        while (at < end) {
            if (!starts_[static_cast<uint8_t>(text[at])]) {
                ++at;
                continue;
            }
            size_t stop = at;
            const AddedToken *found = longest(text, at, end, rules, stop);
            if (found == nullptr) {
                ++at;
                continue;
            }
            if (found->single_word && !stands_alone(text, begin, end, at, stop)) {
                at = stop;
                continue;
            }
            size_t left = at;
            if (found->left_strip) left = strip_left(text, pending, at);
            if (found->right_strip) stop = strip_right(text, stop, end);
            if (pending < left) text_piece(pending, left);
            token(found->id);
            at = pending = stop;
        }
        if (pending < end) text_piece(pending, end);
    }

  private:
    struct Node {
        uint32_t child = 0, sibling = 0; // 0 means none, because the root is never a child
        int32_t token = -1;
        uint8_t byte = 0;
    };

    uint32_t child(uint32_t node, uint8_t byte) const {
        uint32_t next = nodes_[node].child;
        while (next != 0 && nodes_[next].byte != byte) next = nodes_[next].sibling;
        return next;
    }

    static bool is_literal(const MatchRules &rules, size_t begin, size_t end) {
        if (rules.literal == nullptr) return false;
        const auto after = std::upper_bound(rules.literal->begin(), rules.literal->end(), begin,
                                            [](size_t at, const Range &range) { return at < range.end; });
        return after != rules.literal->end() && after->begin < end;
    }

    const AddedToken *longest(const char *text, size_t at, size_t end, const MatchRules &rules, size_t &stop) const {
        const AddedToken *best = nullptr;
        uint32_t node = 0;
        for (size_t i = at; i < end; ++i) {
            node = child(node, static_cast<uint8_t>(text[i]));
            if (node == 0) break;
            if (nodes_[node].token < 0) continue;
            const AddedToken &token = tokens_[nodes_[node].token];
            if (token.control && (rules.control == Control::plain || is_literal(rules, at, i + 1))) continue;
            best = &token, stop = i + 1;
        }
        return best;
    }

    static bool stands_alone(const char *text, size_t begin, size_t end, size_t at, size_t stop) {
        return (at == begin || !is_word(character_before(text, begin, at))) &&
               (stop == end || !is_word(character_at(text, stop, end)));
    }
    static size_t strip_left(const char *text, size_t begin, size_t at) {
        while (at > begin) {
            const Character c = character_before(text, begin, at);
            if (!(c.classes & white_space)) break;
            at -= c.n_bytes;
        }
        return at;
    }
    static size_t strip_right(const char *text, size_t at, size_t end) {
        while (at < end) {
            const Character c = character_at(text, at, end);
            if (!(c.classes & white_space)) break;
            at += c.n_bytes;
        }
        return at;
    }

    std::vector<Node> nodes_ = std::vector<Node>(1);
    std::vector<AddedToken> tokens_;
    std::array<bool, 256> starts_{};
};

// A text between added tokens, or an added token if `id` is not -1.
struct Fragment {
    int32_t id;
    Range text;
};

// The results of a tokenizer's `partition`, in order.
template <class Tokenizer>
std::vector<Fragment> fragments_of(const Tokenizer &tokenizer, std::string_view text, const MatchRules &rules) {
    std::vector<Fragment> found;
    tokenizer.partition(
        text, rules, [&](size_t begin, size_t end) { found.push_back({-1, {begin, end}}); },
        [&](int32_t id) { found.push_back({id, {0, 0}}); });
    return found;
}

} // namespace quire::tokenizer
