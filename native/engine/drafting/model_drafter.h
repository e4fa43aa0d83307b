// Proposes the tokens of a smaller model.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "engine/drafting/drafter.h"
#include "engine/scheduling/scheduler.h"
#include "engine/scheduling/step_runner.h"
#include "kv/cache_tiers.h"

namespace quire {

// The draft model of Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding"
// (2023), and Chen, Borgeaud et al., "Accelerating large language model decoding with speculative sampling" (2023).
// It proposes its likeliest tokens, for all sequences at once, with a cache and a scheduler of its own.  The prompt
// of a sequence that is new to it is read in pieces, while the others go on.
class ModelDrafter : public Drafter {
  public:
    // n_ctx: positions that the model has.  `tiers`: below its cache.  UnsupportedError for a model with a recurrent
    // state, or without logits; LoadError as for CacheTiers.
    ModelDrafter(std::shared_ptr<Executor> executor, int64_t n_ctx, const CacheTiersConfig &tiers = {});
    std::string name() const override { return "draft"; }
    void propose(std::span<DraftWish *const> wishes) override;
    void forget(SequenceId sequence, std::span<const int32_t> answer) override;
    bool costs_time() const override { return true; }
    double reading_s(const DraftWish &wish) override;
    void close() override;
    double read_s() const override { return read_s_; }
    int n_vocab() const { return executor_->n_vocab(); }
    std::optional<CacheTiersStats> tier_stats() const { return tiers_ ? std::optional(tiers_->stats()) : std::nullopt; }

  protected:
    // The text that the model reads before it proposes.
    struct Text {
        std::span<const int32_t> tokens;
        int64_t n_kept; // tokens already read that may stay, at most
        std::string salt; // only texts of one salt share what was computed
    };
    // None: nothing can be proposed for the wish.
    virtual std::optional<Text> text_of(const DraftWish &wish);
    // Features that come with the tokens of a step, where the model reads them (StepBatch::features); and those that an
    // item's rows in the step have left.
    virtual std::span<const float> features_of(const Plan &) { return {}; }
    virtual void has_read(const PlanItem &, std::span<const float> /*features*/) {}
    // The token that a place in a row of logits stands for.
    virtual int32_t token_of(size_t logit) const { return static_cast<int32_t>(logit); }
    // The sequence's text must be read anew; nothing is proposed for it now.
    void drop(SequenceId sequence);
    bool is_read(SequenceId sequence) const; // from its beginning, or in part
    SequenceId owner_of(SequenceId own) const { return owners_.at(own); }
    const Executor &executor() const { return *executor_; }
    double token_read_s() const { return token_read_s_; }

  private:
    bool take(DraftWish &wish);
    void step();
    void extend(const PlanItem &item, const ItemRows &rows);
    int64_t n_unread(const DraftWish &wish);

    std::shared_ptr<Executor> executor_;
    int64_t n_ctx_;
    Scheduler scheduler_;
    StepRunner runner_;
    std::shared_ptr<CacheTiers> tiers_; // null: none
    std::unordered_map<SequenceId, int64_t> unread_; // tokens that cache and tiers lacked, of texts not read yet
    std::unordered_map<SequenceId, std::optional<SequenceId>> sequences_; // by the decoder's; none: does not fit
    std::unordered_map<SequenceId, SequenceId> owners_;  // the decoder's sequence of each own one
    double token_read_s_ = 0, read_s_ = 0;               // per token, and for the last proposals
    std::unordered_map<SequenceId, DraftWish *> wishes_; // by own sequence: those that lack tokens
};

} // namespace quire
