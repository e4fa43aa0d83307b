// Byte-level byte-pair encoding: added tokens, pre-tokenizer, merges.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "added_tokens.h"
#include "byte_map.h"
#include "merger.h"
#include "piece_table.h"
#include "pretokenize.h"

namespace quire::tokenizer {

// The numbers of GGUF's key `tokenizer.ggml.token_type`.
enum class TokenKind : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5 };

// Added tokens of the first stage are matched in the original text, those of the second after normalization.
enum class Stage { both, second };

// A vocabulary with merges.  It is filled once (tokens in the order of their ids, `end_tokens`, added tokens and
// merges, `end_merges`) and then constant, so any number of threads may encode.
//
// A piece is the result of merges: a token, or a hidden piece, which is only an intermediate step.  A hidden piece that
// is left over is replaced by the tokens of its bytes.
class BytePairModel : public MergeSink {
  public:
    std::vector<Pass> passes;
    bool ignore_merges = false; // words that are tokens are taken whole, without merging
    int32_t unknown_id = -1;    // for bytes without a token; -1 drops such bytes before merging

    void reserve(size_t n_tokens, size_t n_bytes, size_t n_merges) {
        pieces_.reserve(n_tokens + 256, n_bytes);
        index_.reserve(n_tokens);
        merges_.reserve(n_merges);
    }

    void add_token(std::string_view text, TokenKind kind) {
        const auto id = static_cast<uint32_t>(kinds_.size());
        kinds_.push_back(kind);
        buffer_.clear();
        const bool decodes = byte_map.append(text, buffer_);
        const bool literal =
            kind == TokenKind::control || kind == TokenKind::unknown || kind == TokenKind::user_defined;
        pieces_.add(decodes && !literal ? std::string_view(buffer_) : text);
        indexed_.push_back(false);
        // Plain text must never produce a control token, so merges cannot reach it.
        if (kind == TokenKind::control || kind == TokenKind::unknown || !decodes || text.empty()) return;
        // They cannot reach a user-defined token either if its text means other bytes in the byte-level alphabet.
        if (buffer_ != pieces_[id]) return;
        if (index_.insert(pieces_, buffer_, id)) {
            indexed_[id] = true;
        } else if (kind == TokenKind::normal) {
            throw std::invalid_argument("duplicate token '" + std::string(text) + "'");
        }
        longest_ = std::max(longest_, buffer_.size());
    }

    void end_tokens() {
        n_tokens_ = kinds_.size();
        // Plain text must never produce a control token, even if the file says so.
        if (unknown_id >= 0 && kinds_.at(static_cast<size_t>(unknown_id)) != TokenKind::unknown) {
            throw std::invalid_argument("the unknown token does not have the type of unknown tokens");
        }
        for (int byte = 0; byte < 256; ++byte) {
            const char c = static_cast<char>(byte);
            bytes_.pieces[byte] = piece_of({&c, 1});
        }
    }

    void add_added_token(const AddedToken &token, bool normalized) {
        const std::string_view text = pieces_[token.id]; // the text of control and user-defined tokens
        if (!text.empty()) added_[normalized ? 1 : 0].add(text, token);
    }

    void add_merge(std::string_view left, std::string_view right) override {
        buffer_.clear();
        if (!byte_map.append(left, buffer_)) throw_merge(left);
        const size_t n_left = buffer_.size();
        if (!byte_map.append(right, buffer_)) throw_merge(right);
        if (n_left == 0 || buffer_.size() == n_left) throw_merge("");
        const std::string_view joined = buffer_;
        const uint32_t first = piece_of(joined.substr(0, n_left)), second = piece_of(joined.substr(n_left));
        // Most vocabularies number tokens in the order of merges, so this guess saves a lookup in a large table.
        if (last_joined_ >= n_tokens_ || pieces_[last_joined_] != joined) ++last_joined_;
        if (last_joined_ >= n_tokens_ || !indexed_[last_joined_] || pieces_[last_joined_] != joined) {
            last_joined_ = piece_of(joined);
        }
        joints_.add(joined[n_left - 1], joined[n_left]);
        if (n_left == 1) merged_[static_cast<uint8_t>(joined.front())] = true;
        if (joined.size() - n_left == 1) merged_[static_cast<uint8_t>(joined.back())] = true;
        merges_.insert(first, second, {n_merges_++, last_joined_});
    }

    void end_merges() {
        whole_.reset(pieces_.size());
        for (size_t byte = 0; byte < 256; ++byte)
            left_out_[byte] = unknown_id < 0 && !merged_[byte] && id_of(bytes_.pieces[byte]) < 0;
    }

    size_t n_tokens() const { return n_tokens_; }
    TokenKind kind(size_t id) const { return kinds_[id]; }
    std::string_view bytes(size_t id) const { return pieces_[id]; }

    // Append the ids of `text`.
    void encode(std::string_view text, const MatchRules &rules, Stage stage, std::vector<int32_t> &ids) const {
        Merger merger(merges_, n_merges_, bytes_, joints_);
        auto add_id = [&](int32_t id) { ids.push_back(id); };
        auto plain = [&](size_t begin, size_t end) {
            split(passes, 0, text.data(), begin, end,
                  [&](size_t from, size_t to) { encode_word(text.substr(from, to - from), merger, ids); });
        };
        auto second = [&](size_t begin, size_t end) {
            if (added_[1].empty()) return plain(begin, end);
            added_[1].partition(text.data(), begin, end, rules, plain, add_id);
        };
        if (stage == Stage::both) {
            added_[0].partition(text.data(), 0, text.size(), rules, second, add_id);
        } else {
            second(0, text.size());
        }
    }

    // Only match added tokens of the first stage: visits pieces of text and ids, in order.
    template <class TextPiece, class Token>
    void partition(std::string_view text, const MatchRules &rules, TextPiece &&text_piece, Token &&token) const {
        added_[0].partition(text.data(), 0, text.size(), rules, text_piece, token);
    }

  private:
    static constexpr uint32_t none = StringIndex::none;

    struct Bytes {
        std::array<uint32_t, 256> pieces{};

        void append(std::string_view word, LargeVector<uint32_t> &found) const {
            found.resize(word.size());
            for (size_t i = 0; i < word.size(); ++i) found[i] = pieces[static_cast<uint8_t>(word[i])];
        }
    };

    [[noreturn]] static void throw_merge(std::string_view part) {
        throw std::invalid_argument("merge of '" + std::string(part) + "', which is not in the byte-level alphabet");
    }

    uint32_t add_hidden(std::string_view bytes) {
        const std::string copy(bytes); // `bytes` may point into pieces_, which grows
        const auto piece = static_cast<uint32_t>(pieces_.size());
        pieces_.add(copy);
        index_.insert(pieces_, copy, piece);
        longest_ = std::max(longest_, copy.size());
        return piece;
    }
    uint32_t piece_of(std::string_view bytes) {
        const uint32_t found = index_.find(pieces_, bytes);
        return found != none ? found : add_hidden(bytes);
    }
    int32_t id_of(uint32_t piece) const { return piece < n_tokens_ ? static_cast<int32_t>(piece) : -1; }

    void emit(uint32_t piece, std::vector<int32_t> &ids) const {
        if (const int32_t id = id_of(piece); id >= 0) {
            ids.push_back(id);
            return;
        }
        for (const char c : pieces_[piece]) {
            const int32_t id = id_of(bytes_.pieces[static_cast<uint8_t>(c)]);
            if (id >= 0 || unknown_id >= 0) ids.push_back(id >= 0 ? id : unknown_id);
        }
    }

    bool is_left_out(char c) const { return left_out_[static_cast<uint8_t>(c)]; }

    void encode_word(std::string_view word, Merger<Bytes> &merger, std::vector<int32_t> &ids) const {
        if (left_out_.any() && std::any_of(word.begin(), word.end(), [&](char c) { return is_left_out(c); })) {
            const uint32_t whole = ignore_merges && word.size() <= longest_ ? index_.find(pieces_, word) : none;
            if (whole != none && id_of(whole) >= 0) return emit(whole, ids);
            // The bytes on both sides of a dropped byte become neighbours.
            std::string kept;
            std::remove_copy_if(word.begin(), word.end(), std::back_inserter(kept),
                                [&](char c) { return is_left_out(c); });
            if (!kept.empty()) merge_word(kept, merger, ids, false);
            return;
        }
        merge_word(word, merger, ids, ignore_merges);
    }

    void merge_word(std::string_view word, Merger<Bytes> &merger, std::vector<int32_t> &ids, bool whole_first) const {
        const uint32_t whole = word.size() <= longest_ ? index_.find(pieces_, word) : none;
        if (whole != none && (whole_.is_known(whole) || (whole_first && id_of(whole) >= 0))) {
            return emit(whole, ids);
        }
        const LargeVector<uint32_t> &pieces = merger.merge(word);
        if (whole != none) whole_.learn(whole, pieces.size() == 1 && pieces[0] == whole);
        for (const uint32_t piece : pieces) emit(piece, ids);
    }

    size_t n_tokens_ = 0, longest_ = 0;
    uint32_t n_merges_ = 0;
    uint32_t last_joined_ = 0;
    Strings pieces_; // the bytes of tokens, then those of hidden pieces
    std::vector<TokenKind> kinds_;
    std::vector<bool> indexed_;       // tokens in `index_`
    StringIndex index_;
    MergeIndex merges_;
    Joints joints_;
    Bytes bytes_;
    std::bitset<256> merged_;   // single bytes that merges use
    std::bitset<256> left_out_; // bytes without a token, which are dropped
    std::array<AddedTokens, 2> added_;
    WholeWords whole_;
    std::string buffer_;
};

} // namespace quire::tokenizer
