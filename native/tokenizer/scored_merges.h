// SentencePiece's byte-pair encoding (Kudo and Richardson 2018): the characters of a text are joined pair by pair,
// first the pair whose text is the token with the highest score, leftmost among equals.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "merger.h"
#include "piece_model.h"
#include "piece_table.h"
#include "rank_queue.h"
#include "unicode.h"

namespace quire::tokenizer {

// Joins the characters of one stretch of text.  Long stretches use a queue, so that the time stays linear.
class ScoredMerger {
  public:
    struct Tables {
        const Strings &texts;
        const StringIndex &index;
        const std::vector<uint32_t> &ranks; // per token; 0 is the highest score
        size_t n_ranks, longest;
    };
    struct Symbol {
        uint32_t begin, size, token; // token is StringIndex::none if the text is not a token
    };

    explicit ScoredMerger(const Tables &tables) : tables_(tables) {}

    // Return the symbols of `text`; valid until the next call.
    const LargeVector<Symbol> &merge(std::string_view text) {
        text_ = text;
        symbols_.clear();
        for (size_t at = 0; at < text.size();) {
            const uint32_t size = character_at(text.data(), at, text.size()).n_bytes;
            symbols_.push_back({static_cast<uint32_t>(at), size, StringIndex::none});
            at += size;
        }
        if (symbols_.size() <= short_text) {
            merge_short();
        } else {
            merge_long();
        }
        for (Symbol &symbol : symbols_)
            if (symbol.token == StringIndex::none) symbol.token = find(symbol.begin, symbol.size);
        return symbols_;
    }

  private:
    static constexpr size_t short_text = 48;
    static constexpr uint32_t no_rank = 0xffffffff, none = 0xffffffff;

    uint32_t find(size_t begin, size_t size) const {
        if (size > tables_.longest) return StringIndex::none;
        return tables_.index.find(tables_.texts, text_.substr(begin, size));
    }
    struct Pair {
        uint32_t rank = no_rank, token = StringIndex::none;
    };
    Pair pair(const Symbol &left, const Symbol &right) const {
        const uint32_t token = find(left.begin, left.size + right.size);
        return token == StringIndex::none ? Pair{} : Pair{tables_.ranks[token], token};
    }

    void merge_short() {
        std::array<Pair, short_text> pairs; // the symbol at each place with the next one
        size_t n = symbols_.size();
        for (size_t i = 0; i + 1 < n; ++i) pairs[i] = pair(symbols_[i], symbols_[i + 1]);
        while (n > 1) {
            size_t best = 0;
            for (size_t i = 1; i + 1 < n; ++i)
                if (pairs[i].rank < pairs[best].rank) best = i;
            if (pairs[best].rank == no_rank) break;
            symbols_[best].size += symbols_[best + 1].size;
            symbols_[best].token = pairs[best].token;
            --n;
            for (size_t i = best + 1; i < n; ++i) {
                symbols_[i] = symbols_[i + 1];
                if (i + 1 < n) pairs[i] = pairs[i + 1];
            }
            if (best + 1 < n) pairs[best] = pair(symbols_[best], symbols_[best + 1]);
            if (best > 0) pairs[best - 1] = pair(symbols_[best - 1], symbols_[best]);
        }
        symbols_.resize(n);
    }

    struct Link {
        uint32_t previous = none, next = none;
        Pair pair; // this place with the next one
    };

    // Look up the pair that starts at `at` and queue it.
    void look(uint32_t at) {
        Link &link = links_[at];
        link.pair = link.next == none ? Pair{} : pair(symbols_[at], symbols_[link.next]);
        if (link.pair.rank != no_rank) queue_->push(link.pair.rank, at);
    }

    void join(uint32_t at) {
        Link &link = links_[at];
        symbols_[at].size += symbols_[link.next].size;
        symbols_[at].token = link.pair.token;
        links_[link.next].pair = {};
        link.next = links_[link.next].next;
        if (link.next != none) links_[link.next].previous = at;
        look(at);
        if (link.previous != none) look(link.previous);
    }

    void merge_long() {
        const auto n = static_cast<uint32_t>(symbols_.size());
        if (!queue_) queue_.emplace(tables_.n_ranks);
        links_.resize(n);
        for (uint32_t i = 0; i < n; ++i) {
            links_[i].previous = i == 0 ? none : i - 1;
            links_[i].next = i + 1 == n ? none : i + 1;
            look(i);
        }
        uint32_t rank = 0, place = 0;
        while (queue_->next(rank, place)) {
            if (links_[place].pair.rank == rank) join(place); // otherwise the pair no longer exists
        }
        size_t kept = 0;
        for (uint32_t i = 0; i != none; i = links_[i].next) symbols_[kept++] = symbols_[i];
        symbols_.resize(kept);
    }

    const Tables tables_;
    std::string_view text_;
    LargeVector<Symbol> symbols_;
    LargeVector<Link> links_;
    std::optional<RankQueue> queue_; // created for the first long stretch
};

// A text is split between two bytes that are adjacent in no token, mostly between words.
class ScoredMergeModel : public PieceModel {
  public:
    ScoredMergeModel(const PieceTable &table, const std::vector<float> &scores) : table_(table) {
        std::vector<float> distinct;
        for (uint32_t id = 0; id < table.n_tokens(); ++id) {
            if (table.is_matched(id)) distinct.push_back(scores[id]);
        }
        std::sort(distinct.begin(), distinct.end(), std::greater<>());
        distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
        n_ranks_ = distinct.size();
        ranks_.resize(table.n_tokens());
        for (uint32_t id = 0; id < table.n_tokens(); ++id) {
            if (!table.is_matched(id)) continue;
            const auto place = std::lower_bound(distinct.begin(), distinct.end(), scores[id], std::greater<>());
            ranks_[id] = static_cast<uint32_t>(place - distinct.begin());
            const std::string_view text = table.texts()[id];
            longest_ = std::max(longest_, text.size());
            for (size_t i = 1; i < text.size(); ++i) joints_.add(text[i - 1], text[i]);
        }
        whole_.reset(table.n_tokens());
    }

    void encode(std::string_view text, std::vector<int32_t> &ids) const override {
        ScoredMerger merger({table_.texts(), table_.index(), ranks_, n_ranks_, longest_});
        size_t begin = 0;
        for (size_t i = 1; i <= text.size(); ++i) {
            if (i < text.size() && (is_continuation(text[i]) || joints_(text[i - 1], text[i]))) continue;
            encode_part(text.substr(begin, i - begin), merger, ids);
            begin = i;
        }
    }

  private:
    static bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

    void encode_part(std::string_view part, ScoredMerger &merger, std::vector<int32_t> &ids) const {
        const uint32_t whole = part.size() <= longest_ ? table_.index().find(table_.texts(), part) : StringIndex::none;
        if (whole != StringIndex::none && whole_.is_known(whole)) {
            ids.push_back(static_cast<int32_t>(whole));
            return;
        }
        const LargeVector<ScoredMerger::Symbol> &symbols = merger.merge(part);
        if (whole != StringIndex::none) whole_.learn(whole, symbols.size() == 1);
        for (const ScoredMerger::Symbol &symbol : symbols) {
            if (symbol.token != StringIndex::none) {
                ids.push_back(static_cast<int32_t>(symbol.token));
            } else {
                table_.fall_back(part.substr(symbol.begin, symbol.size), ids);
            }
        }
    }

    const PieceTable &table_;
    std::vector<uint32_t> ranks_;
    size_t n_ranks_ = 0, longest_ = 0;
    Joints joints_;
    WholeWords whole_;
};

} // namespace quire::tokenizer
