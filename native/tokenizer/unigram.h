// The unigram language model (Kudo 2018), which cuts a text into the tokens with the highest sum of scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "large_vector.h"
#include "merger.h"
#include "piece_model.h"
#include "trie.h"

namespace quire::tokenizer {

class UnigramModel : public PieceModel {
  public:
    UnigramModel(const PieceTable &table, const std::vector<float> &scores) : table_(table), scores_(scores) {
        double lowest = 0;
        trie_.reserve(table.n_tokens());
        for (uint32_t id = 0; id < table.n_tokens(); ++id) {
            const PieceKind kind = table.kind(id);
            if (kind == PieceKind::normal) lowest = std::min<double>(lowest, scores[id]);
            if (kind == PieceKind::user_defined) scores_[id] = 0; // higher than any normal token
            if (!table.is_matched(id)) continue;
            const std::string_view text = table.texts()[id];
            trie_.add(text, static_cast<int32_t>(id));
            for (size_t i = 1; i < text.size(); ++i) joints_.add(text[i - 1], text[i]);
        }
        unknown_score_ = lowest - 10; // SentencePiece's penalty
    }

    // Split where no token can cross, so that words are searched separately.
    void encode(std::string_view text, std::vector<int32_t> &ids) const override {
        LargeVector<Best> best;
        bool after_unknown = false;
        size_t begin = 0;
        for (size_t i = 1; i <= text.size(); ++i) {
            const bool inside = i < text.size() && (static_cast<uint8_t>(text[i]) & 0xc0) == 0x80;
            if (inside || (i < text.size() && joints_(text[i - 1], text[i]))) continue;
            encode_part(text.substr(begin, i - begin), best, after_unknown, ids);
            begin = i;
        }
    }

  private:
    static constexpr int32_t unreached = -2, unknown = -1;
    struct Best { // the best cut of the text up to a place
        double score;
        uint32_t size; // bytes of the last token
        int32_t token;
    };

    void encode_part(std::string_view text, LargeVector<Best> &best, bool &after_unknown,
                     std::vector<int32_t> &ids) const {
        best.assign(text.size() + 1, {0, 0, unreached});
        auto offer = [&](size_t at, const Best &way) {
            if (best[at].token == unreached || way.score > best[at].score) best[at] = way;
        };
        for (size_t at = 0; at < text.size();) {
            const size_t size = character_at(text.data(), at, text.size()).n_bytes;
            const double score = best[at].score;
            bool has_character = false;
            uint32_t node = Trie::root;
            for (size_t end = at; end < text.size();) {
                node = trie_.child(node, text[end++]);
                if (node == Trie::none) break;
                const int32_t token = trie_.value(node);
                if (token < 0) continue;
                has_character = has_character || end - at == size;
                offer(end, {score + scores_[token], static_cast<uint32_t>(end - at), token});
            }
            if (!has_character) offer(at + size, {score + unknown_score_, static_cast<uint32_t>(size), unknown});
            at += size;
        }
        collect(text, best, after_unknown, ids);
    }

    // Collect the best cut, which is known from its end.  Adjacent unknown characters become one token.
    void collect(std::string_view text, const LargeVector<Best> &best, bool &after_unknown,
                 std::vector<int32_t> &ids) const {
        struct Step {
            size_t begin, size;
            int32_t token;
        };
        LargeVector<Step> steps;
        for (size_t at = text.size(); at > 0; at -= best[at].size) {
            const bool joins = best[at].token == unknown && !steps.empty() && steps.back().token == unknown;
            const size_t begin = at - best[at].size;
            if (joins) {
                steps.back().begin = begin, steps.back().size += best[at].size;
            } else {
                steps.push_back({begin, best[at].size, best[at].token});
            }
        }
        for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
            if (step->token != unknown) {
                ids.push_back(step->token);
            } else if (!after_unknown || table_.has_bytes()) {
                table_.fall_back(text.substr(step->begin, step->size), ids);
            }
            after_unknown = step->token == unknown;
        }
    }

    const PieceTable &table_;
    std::vector<float> scores_;
    double unknown_score_ = 0;
    Trie trie_;
    Joints joints_;
};

} // namespace quire::tokenizer
