#include "engine/scheduling/step_runner.h"

#include <utility>

#include "engine/scheduling/batch.h"

namespace quire {

StepRunner::StepRunner(std::shared_ptr<Executor> executor)
    : executor_(std::move(executor)), n_vocab_(static_cast<size_t>(executor_->n_vocab())),
      n_strips_(n_logit_strips(n_vocab_)), n_hidden_(static_cast<size_t>(executor_->n_hidden())),
      n_taps_(executor_->tapped_layers().size()), n_features_(static_cast<size_t>(executor_->n_features())),
      n_features_read_(static_cast<size_t>(executor_->n_features_read())) {}

void StepRunner::make(const CacheEdit &edit) {
    const bool is_state = edit.group == CacheEdit::states;
    if (edit.kind == CacheEdit::Kind::copy)
        is_state ? executor_->copy_state(edit.from, edit.to) : executor_->copy_block(edit.group, edit.from, edit.to);
    else
        is_state ? executor_->discard_state(edit.from) : executor_->discard_block(edit.group, edit.from);
}

void StepRunner::make_edits(const Plan &plan) {
    for (const CacheEdit &edit : plan.edits) make(edit);
}

void StepRunner::run(const Plan &plan, const CachePool &pool, StepWants wants, std::span<const float> features) {
    if (pool.has_source() && fill_source_batch(source_batch_, plan, pool)) {
        fill_source_media(media_rows_, plan);
        source_batch_.features = media_rows_;
        executor_->encode(source_batch_);
    }
    fill_batch(batch_, plan, pool);
    if (features.empty() && n_features_read_ > 0) {
        fill_media(media_rows_, plan, n_features_read_ - 1);
        features = media_rows_;
    }
    batch_.features = features;
    batch_.hidden = n_hidden_ + n_taps_ > 0 ? wants.hidden : HiddenStates::unwanted;
    batch_.likeliest = std::move(wants.likeliest);
    logits_ = executor_->run(batch_);
    maxima_ = executor_->maxima();
    hidden_ = batch_.hidden == HiddenStates::wanted ? executor_->hidden() : nullptr;
    taps_.clear();
    first_row_ = 0;
    if (batch_.hidden == HiddenStates::wanted)
        for (size_t i = 0; i < n_taps_; ++i) taps_.push_back(executor_->tap(i));
}

std::span<const float> StepRunner::features(const PlanItem &item) {
    if (n_features_ == 0) return {};
    return {executor_->features() + first_row_ * n_features_, static_cast<size_t>(item.n_tokens) * n_features_};
}

// Rows of all taps side by side, for the last n rows of an item.
std::vector<float> StepRunner::tapped(size_t end, size_t n) const {
    std::vector<float> rows;
    for (size_t row = end - n; row < end && !taps_.empty(); ++row)
        for (const Executor::TapRows &tap : taps_)
            rows.insert(rows.end(), tap.data + row * tap.n, tap.data + (row + 1) * tap.n);
    return rows;
}

ItemRows StepRunner::next_rows(const PlanItem &item) {
    const auto n = static_cast<size_t>(item.n_logit_rows);
    first_row_ += static_cast<size_t>(item.n_tokens);
    if (n == 0) return {};
    ItemRows rows;
    rows.n = n;
    rows.logits = {logits_, n * n_vocab_};
    if (maxima_ != nullptr) rows.maxima = {maxima_, n * n_strips_};
    rows.taps = tapped(first_row_, n);
    if (hidden_ != nullptr) rows.hidden = {hidden_, n * n_hidden_};
    logits_ += n * n_vocab_;
    if (maxima_ != nullptr) maxima_ += n * n_strips_;
    if (hidden_ != nullptr) hidden_ += n * n_hidden_;
    return rows;
}

} // namespace quire
