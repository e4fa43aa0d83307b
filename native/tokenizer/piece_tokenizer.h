// A complete tokenizer of pieces: added tokens, then normalization, then the family's model.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "added_tokens.h"
#include "character_map.h"
#include "least_cost.h"
#include "longest_match.h"
#include "piece_model.h"
#include "ranked_merges.h"
#include "scored_merges.h"
#include "unigram.h"

namespace quire::tokenizer {

enum class Family : int32_t { scored_merges, ranked_merges, unigram, word_piece, longest_match, least_cost };

// It is filled once (tokens in the order of their ids, `end_tokens`, for ranked merges these and `end_merges`, added
// tokens) and then constant, so any number of threads may encode.
class PieceTokenizer : public MergeSink {
  public:
    PieceTable table;
    TextNormalizer normalizer;
    RankedRules ranked;
    bool drops_marks = false; // WordPiece drops combining marks

    void end_tokens(Family family, const std::vector<float> &scores) {
        table.check_unknown();
        switch (family) {
        case Family::scored_merges: model_ = std::make_unique<ScoredMergeModel>(table, scores); break;
        case Family::ranked_merges: {
            auto model = std::make_unique<RankedMergeModel>(table, ranked);
            merging_ = model.get();
            model_ = std::move(model);
            break;
        }
        case Family::unigram: model_ = std::make_unique<UnigramModel>(table, scores); break;
        case Family::least_cost: model_ = std::make_unique<LeastCostModel>(table, scores); break;
        case Family::word_piece: model_ = std::make_unique<WordPieceModel>(table, drops_marks); break;
        case Family::longest_match: model_ = std::make_unique<LongestMatchModel>(table); break;
        }
        plain_ = family == Family::word_piece || family == Family::longest_match;
    }

    // Only for the family of ranked merges.
    void add_merge(std::string_view left, std::string_view right) override { merging_->add_merge(left, right); }
    void end_merges() { merging_->end_merges(); }

    void add_added_token(std::string_view text, const AddedToken &token) {
        if (!text.empty()) added_.add(text, token);
    }

    // Append the ids of `text`.
    void encode(std::string_view text, const MatchRules &rules, std::vector<int32_t> &ids) const {
        std::string normalized;
        partition(
            text, rules, [&](size_t begin, size_t end) { stretch(text, begin, end, normalized, ids); },
            [&](int32_t id) { ids.push_back(id); });
    }

    template <class TextPiece, class Token>
    void partition(std::string_view text, const MatchRules &rules, TextPiece &&text_piece, Token &&token) const {
        added_.partition(text.data(), 0, text.size(), rules, text_piece, token);
    }

  private:
    void stretch(std::string_view text, size_t begin, size_t end, std::string &normalized,
                 std::vector<int32_t> &ids) const {
        const std::string_view part = text.substr(begin, end - begin);
        if (plain_) return model_->encode(part, ids);
        normalized.clear();
        normalizer.append(part, normalized, begin == 0);
        model_->encode(normalized, ids);
    }

    std::unique_ptr<PieceModel> model_;
    RankedMergeModel *merging_ = nullptr; // the model, while merges are added
    AddedTokens added_;
    bool plain_ = false;
};

} // namespace quire::tokenizer
