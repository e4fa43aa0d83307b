#include "engine/drafting/model_drafter.h"

#include <algorithm>
#include <limits>

#include "core/clock.h"
#include "core/error.h"
#include "engine/scheduling/scheduler_options.h"

namespace quire {
namespace {

constexpr int prompt_step_tokens = 128;  // tokens of prompts, for one token of sequences that go on
constexpr int least_read_tokens = 16;    // a step with this many tokens beyond one per sequence counts as reading
constexpr double read_time_weight = 0.2; // weight of a step in the mean time of reading a token

SchedulerOptions options_for(int64_t n_ctx) {
    SchedulerOptions options;
    options.n_ctx = n_ctx;
    options.kept_back_blocks = 0;
    return options;
}

} // namespace

ModelDrafter::ModelDrafter(std::shared_ptr<Executor> executor, int64_t n_ctx, const CacheTiersConfig &tiers)
    : executor_(std::move(executor)), n_ctx_(n_ctx),
      scheduler_(scheduler_config(options_for(n_ctx), *executor_), cache_pool(*executor_)), runner_(executor_) {
    if (!executor_->makes_logits() || executor_->undivided_prompts())
        throw UnsupportedError("draft", "the draft model is an encoder, which generates no text");
    if (executor_->cache().source_group())
        throw UnsupportedError("draft", "the draft model is an encoder-decoder model, which is unsupported");
    if (executor_->cache().state_bytes() > 0)
        throw UnsupportedError("draft", "the draft model has recurrent states, which cannot be rolled back");
    if (!tiers.is_used()) return;
    tiers_ = std::make_shared<CacheTiers>(tiers, executor_->cache());
    runner_.use_tiers(tiers_);
    scheduler_.use_tiers(tiers_);
}

void ModelDrafter::close() {
    if (!tiers_) return;
    try {
        Plan plan;
        plan.edits = scheduler_.take_edits();
        runner_.make_edits(plan);
    } catch (const std::exception &) { // the tiers go without what is left
    }
    tiers_->close();
}

// Looked up once: until then nothing of the text is read here.
int64_t ModelDrafter::n_unread(const DraftWish &wish) {
    const auto [found, is_new] = unread_.try_emplace(wish.sequence, 0);
    if (is_new) {
        SequenceSpec spec;
        spec.tokens.assign(wish.tokens.begin(), wish.tokens.end());
        spec.context.salt = std::string(wish.salt);
        found->second = static_cast<int64_t>(wish.tokens.size()) - scheduler_.find_cached(std::move(spec));
    }
    return found->second;
}

double ModelDrafter::reading_s(const DraftWish &wish) {
    if (sequences_.contains(wish.sequence) || token_read_s_ == 0) return 0;
    return token_read_s_ * static_cast<double>(n_unread(wish));
}

void ModelDrafter::forget(SequenceId sequence, std::span<const int32_t>) {
    unread_.erase(sequence);
    drop(sequence);
}

void ModelDrafter::drop(SequenceId sequence) {
    const auto found = sequences_.find(sequence);
    if (found == sequences_.end()) return;
    if (const std::optional<SequenceId> own = found->second) {
        scheduler_.remove(*own);
        owners_.erase(*own);
        wishes_.erase(*own);
    }
    sequences_.erase(found);
}

bool ModelDrafter::is_read(SequenceId sequence) const {
    const auto found = sequences_.find(sequence);
    return found != sequences_.end() && found->second;
}

std::optional<ModelDrafter::Text> ModelDrafter::text_of(const DraftWish &wish) {
    return Text{wish.tokens, std::numeric_limits<int64_t>::max(), std::string(wish.salt)};
}

// True if the model can propose something; its sequence then has the wish's text.
bool ModelDrafter::take(DraftWish &wish) {
    const std::optional<Text> text = text_of(wish);
    if (!text) return false;
    const auto n_tokens = static_cast<int64_t>(text->tokens.size());
    wish.most = static_cast<int>(std::min<int64_t>(wish.most, n_ctx_ - n_tokens));
    if (wish.most < 1) return false;
    auto [entry, is_new] = sequences_.try_emplace(wish.sequence, std::nullopt);
    if (is_new) {
        SequenceSpec spec;
        spec.tokens.assign(text->tokens.begin(), text->tokens.end());
        spec.max_tokens = std::min(wish.max_tokens, n_ctx_);
        spec.context.salt = text->salt;
        try {
            entry->second = scheduler_.submit(std::move(spec), 1, 0.0).front();
            owners_.emplace(*entry->second, wish.sequence);
        } catch (const CapacityError &) { // other sequences may fit
        }
    } else if (entry->second)
        scheduler_.rewrite(*entry->second, text->tokens, text->n_kept);
    if (entry->second) wishes_[*entry->second] = &wish;
    return entry->second.has_value();
}

void ModelDrafter::extend(const PlanItem &item, const ItemRows &rows) {
    const auto found = wishes_.find(item.id);
    if (item.n_logit_rows == 0 || found == wishes_.end()) return;
    DraftWish &wish = *found->second;
    const std::span<float> logits = rows.last(1).logits;
    const int32_t token = token_of(static_cast<size_t>(std::ranges::max_element(logits) - logits.begin()));
    wish.proposal.push_back(token);
    if (static_cast<int>(wish.proposal.size()) < wish.most)
        scheduler_.append(item.id, token);
    else
        wishes_.erase(found);
}

void ModelDrafter::step() {
    const Plan plan = scheduler_.plan_within(0.0, prompt_step_tokens);
    runner_.make_edits(plan);
    if (plan.items.empty()) return;
    const double started_s = now_s();
    const std::vector<int32_t> one_each(static_cast<size_t>(plan.n_logit_rows), 1);
    runner_.run(plan, scheduler_.pool(), {HiddenStates::unwanted, one_each}, features_of(plan));
    if (plan.n_tokens - static_cast<int>(plan.items.size()) >= least_read_tokens) {
        const double seconds = now_s() - started_s, of_token = seconds / plan.n_tokens;
        if (tiers_) tiers_->computed(plan.n_tokens, seconds);
        read_s_ += seconds;
        token_read_s_ = token_read_s_ == 0 ? of_token : token_read_s_ + read_time_weight * (of_token - token_read_s_);
    }
    scheduler_.commit(plan);
    for (const PlanItem &item : plan.items) {
        const std::span<const float> features = runner_.features(item);
        const ItemRows rows = runner_.next_rows(item);
        has_read(item, features);
        extend(item, rows);
    }
}

void ModelDrafter::propose(std::span<DraftWish *const> wishes) {
    wishes_.clear();
    read_s_ = 0;
    int most = 0;
    for (DraftWish *wish : wishes) {
        wish->kind = model_draft_kind;
        if (take(*wish)) most = std::max(most, wish->most);
    }
    for (int i = 0; i < most && !wishes_.empty(); ++i) step();
    wishes_.clear();
}

} // namespace quire
