// Byte-pair encoding over characters: listed merges by rank, as in the byte-level family, but on the text itself, with
// byte tokens for characters without a piece.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "merger.h"
#include "piece_model.h"
#include "piece_table.h"
#include "pretokenize.h"
#include "unicode.h"

namespace quire::tokenizer {

// The pieces of characters.  A character without one becomes a piece per byte, or the unknown piece; no merge uses
// these.
class CharacterPieces {
  public:
    static constexpr uint32_t no_piece = StringIndex::none, first_byte = 0xffff0000, unknown = 0xffff0100;

    explicit CharacterPieces(const PieceTable &table) : table_(table), near_(0x10000, no_piece) {}

    void add(std::string_view text, uint32_t piece) {
        const Code c = code_at(text.data(), 0, text.size());
        if (c.n_bytes != text.size() || c.code == not_a_code) return;
        if (c.code < near_.size()) {
            near_[c.code] = piece;
        } else if (far_index_.insert(far_, text, static_cast<uint32_t>(far_.size()))) {
            far_.add(text), far_pieces_.push_back(piece);
        }
    }

    // True if the character of `word` at `at` has a piece; sets its size in bytes.
    bool has_piece(std::string_view word, size_t at, size_t &n_bytes) const {
        const Code c = code_at(word.data(), at, word.size());
        n_bytes = c.n_bytes;
        const std::string_view text = word.substr(at, c.n_bytes);
        return find(c, text) != no_piece || has_bytes(text);
    }

    void append(std::string_view word, LargeVector<uint32_t> &pieces) const {
        for (size_t at = 0; at < word.size();) {
            const Code c = code_at(word.data(), at, word.size());
            const std::string_view text = word.substr(at, c.n_bytes);
            at += c.n_bytes;
            const uint32_t piece = find(c, text);
            if (piece != no_piece) {
                pieces.push_back(piece);
            } else if (has_bytes(text)) {
                for (const char b : text) pieces.push_back(first_byte + code(b));
            } else {
                pieces.push_back(unknown);
            }
        }
    }

  private:
    static uint8_t code(char byte) { return static_cast<uint8_t>(byte); }

    bool has_bytes(std::string_view text) const {
        return std::all_of(text.begin(), text.end(), [&](char b) { return table_.byte_token(code(b)) >= 0; });
    }

    uint32_t find(const Code &c, std::string_view text) const {
        if (c.code < near_.size()) return near_[c.code];
        if (c.code == not_a_code) return no_piece;
        const uint32_t found = far_index_.find(far_, text);
        return found == StringIndex::none ? no_piece : far_pieces_[found];
    }

    const PieceTable &table_;
    std::vector<uint32_t> near_; // low code points, by code point
    Strings far_;                // higher ones
    StringIndex far_index_;
    std::vector<uint32_t> far_pieces_;
};

struct RankedRules {
    std::vector<Pass> passes;
    bool whole_newlines = false; // a run of line feeds that is a token is taken whole
    size_t n_merges = 0;
};

// Pieces are tokens and, from `n_tokens` on, hidden pieces: intermediate steps of merges that are not tokens.
class RankedMergeModel : public PieceModel {
  public:
    // `rules` must outlive the model.
    RankedMergeModel(const PieceTable &table, const RankedRules &rules)
        : table_(table), rules_(rules), alphabet_(table) {
        merges_.reserve(rules.n_merges);
        for (uint32_t id = 0; id < table.n_tokens(); ++id) {
            if (!table.is_matched(id)) continue;
            longest_ = std::max(longest_, table.texts()[id].size());
            alphabet_.add(table.texts()[id], id);
        }
        // Characters are never split.
        for (int left = 0; left < 256; ++left)
            for (int right = 0x80; right < 0xc0; ++right)
                joints_.add(static_cast<char>(left), static_cast<char>(right));
    }

    // Not more than rules.n_merges calls.
    void add_merge(std::string_view left, std::string_view right) {
        if (left.empty() || right.empty() || !is_utf8(left) || !is_utf8(right)) {
            throw std::invalid_argument("a merge is not UTF-8");
        }
        joined_.assign(left).append(right);
        const uint32_t first = piece_of(left), second = piece_of(right);
        joints_.add(left.back(), right.front());
        merges_.insert(first, second, {n_merges_++, piece_of(joined_)});
    }

    void end_merges() {
        whole_.reset(table_.n_tokens());
        for (int byte = 0; byte < 256; ++byte)
            leaves_out_ = leaves_out_ || table_.byte_token(static_cast<uint8_t>(byte)) < 0;
        leaves_out_ = leaves_out_ && table_.unknown_id < 0;
    }

    void encode(std::string_view text, std::vector<int32_t> &ids) const override {
        Merger<CharacterPieces> merger(merges_, n_merges_, alphabet_, joints_);
        split(rules_.passes, 0, text.data(), 0, text.size(),
              [&](size_t begin, size_t end) { encode_word(text.substr(begin, end - begin), merger, ids); });
    }

  private:
    uint32_t token_of(std::string_view text) const { return table_.index().find(table_.texts(), text); }

    uint32_t piece_of(std::string_view text) {
        uint32_t found = token_of(text);
        if (found != StringIndex::none) return found;
        const auto n_tokens = static_cast<uint32_t>(table_.n_tokens());
        found = hidden_index_.find(hidden_, text);
        if (found != StringIndex::none) return n_tokens + found;
        found = static_cast<uint32_t>(hidden_.size());
        hidden_.add(text);
        hidden_index_.insert(hidden_, text, found);
        alphabet_.add(text, n_tokens + found);
        return n_tokens + found;
    }

    void encode_word(std::string_view word, Merger<CharacterPieces> &merger, std::vector<int32_t> &ids) const {
        if (rules_.whole_newlines && word.size() <= longest_ && word.find_first_not_of('\n') == word.npos) {
            const uint32_t token = token_of(word);
            if (token != StringIndex::none) return ids.push_back(static_cast<int32_t>(token));
        }
        if (!leaves_out_) return encode_parts(word, merger, ids);
        std::string kept;
        for (size_t at = 0, size = 0; at < word.size(); at += size)
            if (alphabet_.has_piece(word, at, size)) kept.append(word, at, size);
        encode_parts(kept, merger, ids);
    }

    // Pre-tokenizers leave long stretches here, which are split where no merge can join anything, mostly between words.
    void encode_parts(std::string_view word, Merger<CharacterPieces> &merger, std::vector<int32_t> &ids) const {
        size_t begin = 0;
        for (size_t i = 1; i <= word.size(); ++i) {
            if (i < word.size() && joints_(word[i - 1], word[i])) continue;
            encode_part(word.substr(begin, i - begin), merger, ids);
            begin = i;
        }
    }

    void encode_part(std::string_view part, Merger<CharacterPieces> &merger, std::vector<int32_t> &ids) const {
        const uint32_t token = part.size() <= longest_ ? token_of(part) : StringIndex::none;
        if (token != StringIndex::none && whole_.is_known(token)) return ids.push_back(static_cast<int32_t>(token));
        const LargeVector<uint32_t> &pieces = merger.merge(part);
        if (token != StringIndex::none) whole_.learn(token, pieces.size() == 1 && pieces[0] == token);
        for (const uint32_t piece : pieces) emit(piece, ids);
    }

    void emit(uint32_t piece, std::vector<int32_t> &ids) const {
        if (piece < table_.n_tokens()) {
            ids.push_back(static_cast<int32_t>(piece));
        } else if (piece == CharacterPieces::unknown) {
            if (table_.unknown_id >= 0) ids.push_back(table_.unknown_id);
        } else if (piece >= CharacterPieces::first_byte) {
            ids.push_back(table_.byte_token(static_cast<uint8_t>(piece - CharacterPieces::first_byte)));
        } else {
            table_.fall_back(hidden_[piece - table_.n_tokens()], ids);
        }
    }

    const PieceTable &table_;
    const RankedRules &rules_;
    CharacterPieces alphabet_;
    Strings hidden_;
    StringIndex hidden_index_;
    MergeIndex merges_;
    Joints joints_;
    WholeWords whole_;
    uint32_t n_merges_ = 0;
    size_t longest_ = 0;
    bool leaves_out_ = false; // drop characters without a piece, so that their neighbours become adjacent
    std::string joined_;
};

} // namespace quire::tokenizer
