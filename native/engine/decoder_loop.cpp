#include "engine/decoder_loop.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/batch.h"

namespace quire {
namespace {

int within(std::optional<int> wanted, int limit, const char *what) {
    if (wanted && *wanted > limit)
        throw CapacityError("decoder", cat(what, " must be at most the executor's ", limit, " but is ", *wanted));
    return wanted.value_or(limit);
}

std::shared_ptr<CachePool> cache_pool(const Executor &executor) {
    CachePoolSpec spec;
    const CacheLayout &layout = executor.cache();
    for (const CacheGroup &group : layout.groups())
        spec.groups.push_back(
            {group.lifetime, executor.n_blocks(static_cast<int>(spec.groups.size())), group.block_bytes});
    spec.block_tokens = layout.block_tokens();
    spec.state_bytes = layout.state_bytes();
    if (spec.state_bytes > 0) spec.n_states = executor.n_states();
    spec.budget_bytes = executor.cache_budget_bytes();
    return std::make_shared<CachePool>(std::move(spec));
}

#ifdef QUIRE_DEBUG
constexpr bool checks_every_step = true;
#else
constexpr bool checks_every_step = false;
#endif

} // namespace

// Fewer cost as much: products of matrices read every weight for them.
constexpr int least_step_tokens = 64;

SchedulerConfig scheduler_config(const DecoderConfig &config, const Executor &executor) {
    if (config.n_ctx < 2)
        throw RequestError("decoder", cat("n_ctx must have room for a prompt and an answer but is ", config.n_ctx));
    SchedulerConfig result;
    result.policy = config.policy;
    result.weights = config.weights;
    result.max_step_tokens = within(config.max_step_tokens, executor.max_rows(), "max_step_tokens");
    result.max_step_logit_rows = executor.max_logit_rows();
    if (executor.max_kv_tokens() > 0) result.max_step_kv_tokens = executor.max_kv_tokens();
    const int rows = std::min(result.max_step_tokens, result.max_step_logit_rows);
    result.max_running = within(config.max_running, std::min(executor.max_sequences(), rows), "max_running");
    result.kept_back_blocks = config.kept_back_blocks;
    result.max_preemptions = config.max_preemptions;
    result.snapshot_tokens = config.snapshot_tokens;
    if (executor.undivided_prompts()) result.prompts = SchedulerConfig::Prompts::undivided;
    return result;
}

DecoderLoop::DecoderLoop(std::shared_ptr<Executor> executor, const DecoderConfig &config)
    : executor_(std::move(executor)),
      scheduler_(scheduler_config(config, *executor_), cache_pool(*executor_)),
      pace_(config.step_s, least_step_tokens, within(config.max_step_tokens, executor_->max_rows(), "max_step_tokens")),
      n_vocab_(static_cast<size_t>(executor_->n_vocab())), n_strips_(n_logit_strips(n_vocab_)),
      n_hidden_(static_cast<size_t>(executor_->n_hidden())) {}

void DecoderLoop::make(const CacheEdit &edit) {
    const bool is_state = edit.group == CacheEdit::states;
    if (edit.kind == CacheEdit::Kind::copy)
        is_state ? executor_->copy_state(edit.from, edit.to) : executor_->copy_block(edit.group, edit.from, edit.to);
    else
        is_state ? executor_->discard_state(edit.from) : executor_->discard_block(edit.group, edit.from);
}

double DecoderLoop::now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void DecoderLoop::start(std::unique_ptr<ActiveRequest> owned) {
    ActiveRequest &request = *owned;
    requests_.emplace(request.id, std::move(owned));
    guarded(request, [&] {
        const auto ids = scheduler_.submit(request.take_spec(), request.n_choices(), request.submitted_s);
        for (size_t i = 0; i < ids.size(); ++i) {
            request.choices[i].sequence = ids[i];
            owners_.emplace(ids[i], Owner{&request, static_cast<int>(i)});
        }
    });
}

void DecoderLoop::guarded(ActiveRequest &request, const std::function<void()> &work) {
    try {
        work();
    } catch (const Error &error) {
        fail(request, error.kind(), error.what());
    } catch (const std::exception &error) {
        fail(request, ErrorKind::internal, error.what());
    }
    if (request.ended()) requests_.erase(request.id);
}

void DecoderLoop::release(Choice &choice) {
    if (owners_.erase(choice.sequence) > 0) scheduler_.remove(choice.sequence);
    choice.state = ChoiceState::ended;
}

void DecoderLoop::fail(ActiveRequest &request, ErrorKind kind, const std::string &message) {
    for (Choice &choice : request.choices) release(choice);
    Event event = request.event(EventKind::error, 0);
    event.error_kind = kind;
    event.error = message;
    events_.push_back(std::move(event));
}

void DecoderLoop::fail_all(ErrorKind kind, const std::string &message) {
    for (auto &[id, request] : requests_) fail(*request, kind, message);
    requests_.clear();
}

void DecoderLoop::cancel(ActiveRequest &request) {
    for (int i = 0; i < request.n_choices(); ++i)
        if (request.choices[static_cast<size_t>(i)].state != ChoiceState::ended)
            end(request, i, {FinishReason::cancelled, {}});
}

void DecoderLoop::cancel(RequestId id) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    cancel(*found->second);
    requests_.erase(found);
}

void DecoderLoop::cancel_all() {
    for (auto &[id, request] : requests_) cancel(*request);
    requests_.clear();
}

void DecoderLoop::provide_logits(RequestId id, int index, std::span<float> logits) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return; // cancelled meanwhile
    ActiveRequest &request = *found->second;
    guarded(request, [&] {
        if (index < 0 || index >= request.n_choices() ||
            request.choices[static_cast<size_t>(index)].state != ChoiceState::awaiting_logits)
            throw RequestError("decoder", cat("logits must be awaited but those of choice ", index, " are not"));
        draw_when_masked(request, index, {logits});
    });
}

void DecoderLoop::resume(RequestId id, int index) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return; // cancelled meanwhile
    ActiveRequest &request = *found->second;
    Choice &choice = request.choices[static_cast<size_t>(index)];
    if (choice.state != ChoiceState::awaiting_mask) return;
    guarded(request, [&] {
        std::vector<float> logits = std::exchange(choice.held_logits, {});
        draw_when_masked(request, index, {logits});
    });
}

bool DecoderLoop::step() {
    const Plan plan = scheduler_.plan_within(now_s(), pace_.tokens());
    if (plan.items.empty()) {
        if (!plan.edits.empty()) run(plan);
        return !plan.preempted.empty();
    }
    for (SequenceId id : plan.admitted)
        if (ActiveRequest &request = *owners_.at(id).request; !request.admitted_s) {
            request.admitted_s = now_s();
            request.n_cached = scheduler_.sequence(id).n_cached;
            if (request.request.admission == Admission::announced) {
                events_.push_back(request.event(EventKind::admitted, 0));
                events_.back().n_cached_tokens = request.n_cached;
            }
        }
    const double started_s = now_s();
    float *logits = run(plan);
    if (!logits) return true;
    pace_.took(plan.n_tokens, now_s() - started_s);
    scheduler_.commit(plan);
    Rows rows{logits, executor_->maxima(), batch_.hidden == HiddenStates::wanted ? executor_->hidden() : nullptr};
    for (const PlanItem &item : plan.items) {
        const auto owner = owners_.find(item.id); // gone when another choice failed its request
        if (owner != owners_.end()) tell_progress(*owner->second.request, item);
        if (item.n_logit_rows > 0 && owner != owners_.end()) {
            const Owner at = owner->second;
            guarded(*at.request, [&] { take_rows(at, item, rows); });
        }
        rows.logits += static_cast<size_t>(item.n_logit_rows) * n_vocab_;
        if (rows.maxima != nullptr) rows.maxima += static_cast<size_t>(item.n_logit_rows) * n_strips_;
        if (rows.hidden != nullptr) rows.hidden += static_cast<size_t>(item.n_logit_rows) * n_hidden_;
    }
    ++totals_.n_steps;
    totals_.n_step_sequences += static_cast<int64_t>(plan.items.size());
    if (checks_every_step) check();
    return true;
}

void DecoderLoop::tell_progress(const ActiveRequest &request, const PlanItem &item) {
    if (request.prompt_done || request.request.admission != Admission::announced) return;
    events_.push_back(request.event(EventKind::progress, 0));
    events_.back().n_read_tokens = std::min<int64_t>(item.first + item.n_tokens, request.n_prompt);
}

bool DecoderLoop::wants_hidden(const Plan &plan) const {
    return n_hidden_ > 0 && std::ranges::any_of(plan.items, [&](const PlanItem &item) {
               const auto owner = owners_.find(item.id);
               return owner != owners_.end() && owner->second.request->request.task == Task::embedding;
           });
}

float *DecoderLoop::run(const Plan &plan) {
    static float no_rows = 0; // nobody reads it
    ErrorKind kind = ErrorKind::internal;
    std::string message;
    bool edited = false;
    try {
        for (const CacheEdit &edit : plan.edits) make(edit);
        edited = true;
        if (plan.items.empty()) return &no_rows;
        fill_batch(batch_, plan, scheduler_.pool());
        batch_.hidden = wants_hidden(plan) ? HiddenStates::wanted : HiddenStates::unwanted;
        float *logits = executor_->run(batch_);
        return plan.n_logit_rows > 0 ? logits : &no_rows;
    } catch (const Error &error) {
        kind = error.kind();
        message = error.what();
    } catch (const std::exception &error) {
        message = error.what();
    }
    ++totals_.n_failed_steps;
    if (!edited) { // whose contents lie where is unknown
        scheduler_.forget_published();
        fail_all(kind, message);
        return nullptr;
    }
    for (const PlanItem &item : plan.items) // what their slots hold is unknown
        if (const auto owner = owners_.find(item.id); owner != owners_.end()) {
            const RequestId id = owner->second.request->id;
            fail(*owner->second.request, kind, message);
            requests_.erase(id);
        }
    return nullptr;
}

void DecoderLoop::take_rows(const Owner &owner, const PlanItem &item, Rows rows) {
    float *logits = rows.logits;
    ActiveRequest &request = *owner.request;
    if (request.request.task == Task::embedding) return take_hidden(request, item, rows.hidden);
    const auto last = static_cast<size_t>(item.n_logit_rows - 1);
    LogitRow last_row{{logits + last * n_vocab_, n_vocab_}};
    if (rows.maxima != nullptr) last_row.maxima = {rows.maxima + last * n_strips_, n_strips_};
    if (request.prompt_done) return next_token(request, owner.choice, last_row);
    if (request.wants_prompt_rows()) take_prompt_rows(request, item, logits);
    if (item.first + item.n_tokens < request.n_prompt) return;
    request.prompt_done = true;
    for (int choice = 0; choice < request.n_choices(); ++choice) // one row serves every choice
        if (request.request.task == Task::prompt_logits)
            end(request, choice, {FinishReason::length, {}});
        else
            next_token(request, choice, last_row);
}

void DecoderLoop::take_hidden(ActiveRequest &request, const PlanItem &item, const float *hidden) {
    request.add_hidden({hidden, static_cast<size_t>(item.n_logit_rows) * n_hidden_}, n_hidden_);
    if (item.first + item.n_tokens < request.n_prompt) return;
    request.prompt_done = true;
    events_.push_back(request.embedding_event());
    end(request, 0, {FinishReason::length, {}});
}

void DecoderLoop::take_prompt_rows(ActiveRequest &request, const PlanItem &item, const float *logits) {
    const int64_t first = item.first + item.n_tokens - item.n_logit_rows;
    if (request.request.task == Task::prompt_logits) {
        Event event = request.event(EventKind::prompt_logits, 0);
        event.first_position = first;
        event.n_logit_rows = item.n_logit_rows;
        event.logits.assign(logits, logits + static_cast<size_t>(item.n_logit_rows) * n_vocab_);
        events_.push_back(std::move(event));
        return;
    }
    const auto &tokens = scheduler_.sequence(item.id).tokens;
    const int64_t end = std::min(first + item.n_logit_rows, request.n_prompt - 1);
    for (int64_t position = first; position < end; ++position, logits += n_vocab_)
        request.prompt_logprobs.push_back(log_probs_of({logits, n_vocab_}, tokens[static_cast<size_t>(position) + 1],
                                                       *request.request.params->prompt_logprobs));
}

void DecoderLoop::next_token(ActiveRequest &request, int index, const LogitRow &row) {
    if (request.request.processor == LogitsProcessor::none) return draw_when_masked(request, index, row);
    Choice &choice = request.choices[static_cast<size_t>(index)];
    choice.state = ChoiceState::awaiting_logits;
    Event event = request.event(EventKind::logits, index);
    event.first_position = scheduler_.sequence(choice.sequence).n_tokens() - 1;
    event.n_logit_rows = 1;
    event.logits.assign(row.logits.begin(), row.logits.end());
    events_.push_back(std::move(event));
}

void DecoderLoop::draw_when_masked(ActiveRequest &request, int index, const LogitRow &row) {
    if (request.take_mask(index)) return draw(request, index, row);
    Choice &choice = request.choices[static_cast<size_t>(index)];
    choice.state = ChoiceState::awaiting_mask;
    choice.held_logits.assign(row.logits.begin(), row.logits.end());
    ++totals_.n_late_masks;
}

void DecoderLoop::draw(ActiveRequest &request, int index, const LogitRow &row) {
    const SequenceId sequence = request.choices[static_cast<size_t>(index)].sequence;
    Event delta = request.sample(index, row, scheduler_.sequence(sequence).tokens, now_s());
    ++totals_.n_generated_tokens;
    if (request.masks) ++totals_.n_masked_tokens;
    const int32_t token = delta.token_ids.back();
    const auto ending = request.ending(index, delta);
    events_.push_back(std::move(delta));
    if (ending)
        end(request, index, *ending);
    else {
        request.ask_for_mask(index, token);
        scheduler_.append(sequence, token);
    }
}

void DecoderLoop::end(ActiveRequest &request, int index, const Ending &ending) {
    release(request.choices[static_cast<size_t>(index)]);
    events_.push_back(request.finish_event(index, ending, now_s()));
}

void DecoderLoop::check() {
    try {
        scheduler_.check();
    } catch (const Error &error) {
        ++totals_.n_failed_checks;
        totals_.failed_check = error.what();
    }
}

DecoderStats DecoderLoop::stats() const {
    DecoderStats stats = totals_;
    stats.scheduler = scheduler_.stats();
    stats.n_requests = static_cast<int64_t>(requests_.size());
    const CachePool &pool = scheduler_.pool();
    stats.cache = pool.stats();
    if (const auto unit = static_cast<int64_t>(stats.cache.unit_bytes); unit > 0) {
        stats.n_usable_blocks = static_cast<int64_t>(stats.cache.budget_bytes) / unit;
        stats.n_free_blocks = static_cast<int64_t>(stats.cache.budget_bytes - stats.cache.held_bytes) / unit;
    }
    for (size_t i = 0; i < pool.n_groups(); ++i) {
        stats.n_published_blocks += pool.group(i)->n_published();
        stats.n_evictions += pool.group(i)->n_evictions();
    }
    return stats;
}

} // namespace quire
