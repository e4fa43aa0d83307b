// PLaMo 2's tokenizer: of all cuts of a text into tokens, the one with the highest sum of scores, searched from the end.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "large_vector.h"
#include "piece_model.h"
#include "trie.h"
#include "unicode.h"

namespace quire::tokenizer {

// It differs from the unigram model in what decides between equal sums, and in that scores are whole numbers.
class LeastCostModel : public PieceModel {
  public:
    LeastCostModel(const PieceTable &table, const std::vector<float> &scores) : table_(table) {
        costs_.reserve(scores.size());
        for (const float score : scores) {
            const double whole = std::clamp(static_cast<double>(score) * 1e4, -largest, largest);
            costs_.push_back(-std::llround(whole));
        }
        trie_.reserve(table.n_tokens());
        for (uint32_t id = 0; id < table.n_tokens(); ++id) {
            if (table.is_matched(id) && costs_[id] < impossible) trie_.add(table.texts()[id], static_cast<int32_t>(id));
        }
    }

    void encode(std::string_view text, std::vector<int32_t> &ids) const override {
        constexpr std::string_view mark = "\xef\xbb\xbf"; // a byte order mark at the start is dropped
        if (text.substr(0, mark.size()) == mark) text.remove_prefix(mark.size());
        LargeVector<Best> best;
        best.assign(text.size() + 1, {0, 0, unknown});
        for (size_t at = text.size(); at-- > 0;) best[at] = best_at(text, at, best);
        for (size_t at = 0; at < text.size(); at += best[at].size) {
            if (best[at].token != unknown) {
                ids.push_back(best[at].token);
            } else {
                table_.fall_back(text.substr(at, best[at].size), ids);
            }
        }
    }

  private:
    static constexpr int32_t unknown = -1;
    static constexpr double largest = 2e9; // so that sums do not overflow
    static constexpr int64_t unknown_cost = 10'000'000, impossible = 20'000'000;
    struct Best { // the best cut of the text from a place on
        int64_t cost;
        uint32_t size; // bytes of the first token
        int32_t token;
    };

    // Among equal costs, the longest token wins, and an unknown character loses.
    Best best_at(std::string_view text, size_t at, const LargeVector<Best> &best) const {
        const auto size = character_at(text.data(), at, text.size()).n_bytes;
        Best found{best[at + size].cost + unknown_cost, size, unknown};
        uint32_t node = Trie::root;
        for (size_t end = at; end < text.size();) {
            node = trie_.child(node, text[end++]);
            if (node == Trie::none) break;
            const int32_t token = trie_.value(node);
            if (token < 0) continue;
            const int64_t cost = best[end].cost + costs_[static_cast<size_t>(token)];
            if (cost <= found.cost) found = {cost, static_cast<uint32_t>(end - at), token};
        }
        return found;
    }

    const PieceTable &table_;
    std::vector<int64_t> costs_;
    Trie trie_;
};

} // namespace quire::tokenizer
