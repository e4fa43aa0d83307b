#include "engine/scheduling/step_runner.h"

#include <new>
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
    switch (edit.kind) {
    case CacheEdit::Kind::copy:
        is_state ? executor_->copy_state(edit.from, edit.to) : executor_->copy_block(edit.group, edit.from, edit.to);
        break;
    case CacheEdit::Kind::discard:
        is_state ? executor_->discard_state(edit.from) : executor_->discard_block(edit.group, edit.from);
        break;
    case CacheEdit::Kind::offer: offer(edit); break;
    case CacheEdit::Kind::load: load(edit); break;
    }
}

void StepRunner::offer(const CacheEdit &edit) {
    const TierKey key{edit.group, edit.name};
    if (!tiers_ || !tiers_->wants(key, edit.why)) return;
    try {
        tiers_->put(key, contents(edit.group, edit.from), edit.why);
    } catch (const std::bad_alloc &) { // the tiers go without it
    }
}

TierData StepRunner::contents(int group, int block) {
    const CacheLayout &layout = executor_->cache();
    const bool is_state = group == CacheEdit::states;
    TierData data(is_state ? layout.state_bytes() : layout.groups()[static_cast<size_t>(group)].block_bytes);
    is_state ? executor_->read_state(block, data.fill()) : executor_->read_block(group, block, data.fill());
    return data;
}

TierData StepRunner::read(const TierKey &key, const CachePool &pool) {
    const auto block = pool.find(key);
    return block ? contents(key.group, index(*block)) : TierData();
}

void StepRunner::load(const CacheEdit &edit) {
    edit.group == CacheEdit::states ? executor_->write_state(edit.to, edit.data.data())
                                    : executor_->write_block(edit.group, edit.to, edit.data.data());
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
