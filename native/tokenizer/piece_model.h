// The common part of tokenizers whose tokens are stretches of text: SentencePiece's two, WordPiece, longest match.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.h"
#include "piece_table.h"

namespace quire::tokenizer {

// The numbers of GGUF's key `tokenizer.ggml.token_type`.
enum class PieceKind : int32_t { undefined = 0, normal, unknown, control, user_defined, unused, byte };

// SentencePiece's form of a space.
inline constexpr std::string_view written_space = "\xe2\x96\x81"; // U+2581

// The tokens of a vocabulary; constant after `end_tokens`.
class PieceTable {
  public:
    int32_t unknown_id = -1; // a token of that kind; -1 drops text without a token

    void reserve(size_t n_tokens) {
        texts_.reserve(n_tokens, 8 * n_tokens);
        index_.reserve(n_tokens);
    }

    static constexpr size_t longest_token = 1024; // in bytes of the matched text; bounds the time of a search

    // `matched` is the text of the token after normalization; empty if it is never matched.
    void add_token(std::string_view matched, PieceKind kind) {
        const auto id = static_cast<uint32_t>(kinds_.size());
        kinds_.push_back(kind);
        texts_.add(matched);
        matched_.push_back(false);
        if (kind == PieceKind::byte) return add_byte(matched, static_cast<int32_t>(id));
        // Plain text must never produce control tokens.
        if (matched.empty() || (kind != PieceKind::normal && kind != PieceKind::user_defined)) return;
        if (matched.size() > longest_token) {
            throw std::invalid_argument("a token has " + std::to_string(matched.size()) + " bytes, the limit is 1024");
        }
        if (index_.insert(texts_, matched, id)) {
            matched_[id] = true;
        } else if (kind == PieceKind::normal) {
            throw std::invalid_argument("duplicate token '" + std::string(matched) + "'");
        }
    }

    // Plain text must never produce a control token, even if the file says so.
    void check_unknown() const {
        if (unknown_id >= 0 && kinds_.at(static_cast<size_t>(unknown_id)) != PieceKind::unknown) {
            throw std::invalid_argument("the unknown token does not have the type of unknown tokens");
        }
    }

    size_t n_tokens() const { return kinds_.size(); }
    PieceKind kind(size_t id) const { return kinds_[id]; }
    bool is_matched(size_t id) const { return matched_[id]; }
    const Strings &texts() const { return texts_; }
    const StringIndex &index() const { return index_; }
    int32_t byte_token(uint8_t byte) const { return bytes_[byte]; }
    bool has_bytes() const { return has_bytes_; }

    // Append the ids of text without a token: its bytes' tokens, or one unknown token.
    void fall_back(std::string_view text, std::vector<int32_t> &ids) const {
        const bool all = has_bytes_ && std::all_of(text.begin(), text.end(),
                                                   [&](char c) { return bytes_[static_cast<uint8_t>(c)] >= 0; });
        if (all) {
            for (const char c : text) ids.push_back(bytes_[static_cast<uint8_t>(c)]);
        } else if (unknown_id >= 0) {
            ids.push_back(unknown_id);
        }
    }

  private:
    // Add a byte token, which must be written like <0x41>.
    void add_byte(std::string_view text, int32_t id) {
        auto digit = [&](char c) {
            const auto place = std::string_view("0123456789ABCDEF").find(c >= 'a' && c <= 'f' ? c - 'a' + 'A' : c);
            return place == std::string_view::npos ? -1 : static_cast<int>(place);
        };
        const bool framed = text.size() == 6 && text.substr(0, 3) == "<0x" && text[5] == '>';
        if (!framed || digit(text[3]) < 0 || digit(text[4]) < 0) {
            throw std::invalid_argument("malformed byte token '" + std::string(text) + "': expected <0x00> to <0xFF>");
        }
        int32_t &slot = bytes_[digit(text[3]) * 16 + digit(text[4])];
        if (slot >= 0) throw std::invalid_argument("duplicate byte token '" + std::string(text) + "'");
        slot = id, has_bytes_ = true;
    }

    static std::array<int32_t, 256> no_bytes() {
        std::array<int32_t, 256> none{};
        none.fill(-1);
        return none;
    }

    Strings texts_;
    StringIndex index_;
    std::vector<PieceKind> kinds_;
    std::vector<bool> matched_; // tokens in `index_`
    std::array<int32_t, 256> bytes_ = no_bytes();
    bool has_bytes_ = false;
};

// Tokenizes text between added tokens.  It is immutable, so any number of threads may share it.
class PieceModel {
  public:
    PieceModel() = default;
    PieceModel(const PieceModel &) = delete;
    PieceModel &operator=(const PieceModel &) = delete;
    virtual ~PieceModel() = default;
    virtual void encode(std::string_view text, std::vector<int32_t> &ids) const = 0;
};

} // namespace quire::tokenizer
