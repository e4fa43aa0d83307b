// Proposes the predictions of a head that was trained with the model, from the model's features.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/drafting/model_drafter.h"

namespace quire {

// Multi-token prediction (Gloeckle et al., "Better & faster large language models via multi-token prediction", 2024;
// DeepSeek-AI, "DeepSeek-V3 technical report", 2024): a small model whose row for a token also reads the model's
// features of the position before, and that predicts the token after.  For later tokens it reads its own features.
// Its text is the sequence's from the first token whose features are known: rows found in the cache have none.
//
// Heads of EAGLE-3 (Li et al., "EAGLE-3: Scaling up inference acceleration of large language models via training-time
// test", 2025) read and write features in the same way, and may know fewer tokens.
class HeadDrafter : public ModelDrafter {
  public:
    // As ModelDrafter.  `tokens`: the model's token of each one that the head has logits of; empty: they are the same.
    // ShapeError unless the head leaves features like those that it reads, and `tokens` are as many as its logits.
    HeadDrafter(std::shared_ptr<Executor> executor, int64_t n_ctx, std::string name = "mtp",
                std::vector<int32_t> tokens = {});
    std::string name() const override { return name_; }
    void forget(SequenceId sequence, std::span<const int32_t> answer) override;
    double reading_s(const DraftWish &wish) override;
    int n_features() const override { return executor().n_features_read(); }
    void see(SequenceId sequence, int64_t first, std::span<const float> features) override;

  protected:
    std::optional<Text> text_of(const DraftWish &wish) override;
    std::span<const float> features_of(const Plan &plan) override;
    void has_read(const PlanItem &item, std::span<const float> features) override;
    int32_t token_of(size_t logit) const override {
        return tokens_.empty() ? ModelDrafter::token_of(logit) : tokens_[logit];
    }

  private:
    // State of a sequence.  Positions are the sequence's; row r of the head is for position begin + r, with the token
    // after.
    struct Known {
        int64_t first = 0;         // position of the first of `rows`
        std::vector<float> rows;   // features of the model
        int64_t begin = 0;         // where the head's text begins
        int64_t n_of_model = 0;    // rows of the head's text that read the model's features; others read its own
        int64_t n_read = 0;        // rows that are computed
        int64_t next_row = -1;     // the row of the head that reads `next`
        std::vector<float> next;   // features of its own
    };
    int64_t end(const Known &known) const;
    const float *features_of_row(const Known &known, int64_t row) const;

    std::string name_;
    std::vector<int32_t> tokens_;
    std::unordered_map<SequenceId, Known> known_;
    std::vector<float> features_; // for one step
    std::vector<SequenceId> lost_; // sequences of the step that lack features
};

} // namespace quire
