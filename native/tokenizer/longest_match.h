// Tokenizers that take the longest token at each place: WordPiece (within words) and RWKV (over bytes).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "piece_model.h"
#include "trie.h"
#include "unicode.h"

namespace quire::tokenizer {

// WordPiece (Wu et al. 2016) as in BERT, for text that is normalized except for its white space.  Words end at white
// space and around punctuation and Chinese characters.  A word that tokens do not cover is one unknown token.  In the
// vocabulary, tokens that start a word start with a written space.
class WordPieceModel : public PieceModel {
  public:
    // `drops_marks` drops combining marks from decomposed text.
    WordPieceModel(const PieceTable &table, bool drops_marks) : table_(table), drops_marks_(drops_marks) {
        begins_.reserve(table.n_tokens());
        for (uint32_t id = 0; id < table.n_tokens(); ++id) {
            if (!table.is_matched(id)) continue;
            std::string_view text = table.texts()[id];
            // A single U+2581 is that character and continues a word, because tokens that start a word are not empty.
            const bool begins = text != written_space && text.substr(0, written_space.size()) == written_space;
            text.remove_prefix(begins ? written_space.size() : n_escaping(text));
            (begins ? begins_ : continues_).add(text, static_cast<int32_t>(id));
        }
    }

    void encode(std::string_view text, std::vector<int32_t> &ids) const override {
        std::string word;
        size_t n_characters = 0;
        auto end_word = [&] {
            if (!word.empty()) encode_word(word, n_characters, ids);
            word.clear(), n_characters = 0;
        };
        for (size_t at = 0; at < text.size();) {
            const Character c = character_at(text.data(), at, text.size());
            if (is_dropped(c)) {
                at += c.n_bytes;
                continue;
            }
            if (c.classes & white_space) {
                end_word();
            } else {
                const bool alone = stands_alone(c);
                if (alone) end_word();
                word.append(text, at, c.n_bytes);
                ++n_characters;
                if (alone) end_word();
            }
            at += c.n_bytes;
        }
        end_word();
    }

  private:
    static constexpr size_t longest_word = 100; // in characters; longer words are unknown

    // The bytes of an escaping prefix: a token that continues a word with U+2581 keeps its ##, to distinguish it from
    // tokens that start a word.
    static size_t n_escaping(std::string_view text) {
        size_t at = 0;
        while (text.substr(at, 2) == "##") at += 2;
        return at > 0 && text.substr(at, written_space.size()) == written_space ? 2 : 0;
    }

    bool is_dropped(const Character &c) const {
        constexpr Classes control = bit(Category::Cc) | bit(Category::Cf) | bit(Category::Co) | bit(Category::Cs);
        if (c.code == '\t' || c.code == '\n' || c.code == '\r') return false;
        return (c.classes & control) != 0 || c.code == 0xfffd || c.code == not_a_code ||
               (drops_marks_ && (c.classes & bit(Category::Mn)) != 0);
    }
    static bool stands_alone(const Character &c) {
        const bool ascii = (c.code >= 33 && c.code <= 47) || (c.code >= 58 && c.code <= 64) ||
                           (c.code >= 91 && c.code <= 96) || (c.code >= 123 && c.code <= 126);
        return ascii || (c.classes & punctuation) != 0 || is_chinese(c.code);
    }
    // The ranges in Hugging Face's code for BERT tokenizers.
    static bool is_chinese(uint32_t code) {
        return (code >= 0x4e00 && code <= 0x9fff) || (code >= 0x3400 && code <= 0x4dbf) ||
               (code >= 0x20000 && code <= 0x2a6df) || (code >= 0x2a700 && code <= 0x2b73f) ||
               (code >= 0x2b740 && code <= 0x2b81f) || (code >= 0x2b920 && code <= 0x2ceaf) ||
               (code >= 0xf900 && code <= 0xfaff) || (code >= 0x2f800 && code <= 0x2fa1f);
    }

    void encode_word(std::string_view word, size_t n_characters, std::vector<int32_t> &ids) const {
        const size_t n_before = ids.size();
        bool covered = n_characters <= longest_word;
        for (size_t at = 0; covered && at < word.size();) {
            const Trie &trie = at == 0 ? begins_ : continues_;
            size_t stop = at;
            const int32_t longest = trie.longest(word, at, stop);
            covered = longest >= 0;
            if (covered) ids.push_back(longest);
            at = stop;
        }
        if (covered) return;
        ids.resize(n_before);
        if (table_.unknown_id >= 0) ids.push_back(table_.unknown_id);
    }

    const PieceTable &table_;
    bool drops_marks_;
    Trie begins_, continues_;
};

// RWKV's tokenizer: the longest token at each place, over bytes.
class LongestMatchModel : public PieceModel {
  public:
    explicit LongestMatchModel(const PieceTable &table) : table_(table) {
        trie_.reserve(table.n_tokens());
        for (uint32_t id = 0; id < table.n_tokens(); ++id)
            if (table.is_matched(id)) trie_.add(table.texts()[id], static_cast<int32_t>(id));
    }

    void encode(std::string_view text, std::vector<int32_t> &ids) const override {
        for (size_t at = 0; at < text.size();) {
            size_t stop = at + 1;
            const int32_t longest = trie_.longest(text, at, stop);
            if (longest >= 0) {
                ids.push_back(longest);
            } else {
                table_.fall_back(text.substr(at, 1), ids);
            }
            at = stop;
        }
    }

  private:
    const PieceTable &table_;
    Trie trie_;
};

} // namespace quire::tokenizer
