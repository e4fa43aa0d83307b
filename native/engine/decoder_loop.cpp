#include "engine/decoder_loop.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace quire {
namespace {

#ifdef QUIRE_DEBUG
constexpr bool checks_every_step = true;
#else
constexpr bool checks_every_step = false;
#endif

constexpr double most_waited = 0.5;    // of a step's time, for masks
constexpr double least_wait_s = 10e-6; // what waiting itself takes

} // namespace

// Fewer cost as much: products of matrices read every weight for them.
constexpr int least_step_tokens = 64;

DecoderLoop::DecoderLoop(const std::shared_ptr<Executor> &executor, const DecoderConfig &config,
                         std::vector<std::shared_ptr<Drafter>> drafters)
    : runner_(executor), scheduler_(scheduler_config(config, *executor), cache_pool(*executor)),
      pace_(config.step_s, least_step_tokens, scheduler_.config().max_step_tokens),
      speculator_(std::move(drafters), config.drafts) {}

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
    if (owners_.erase(choice.sequence) > 0) {
        const Sequence &sequence = scheduler_.sequence(choice.sequence);
        speculator_.forget(choice.sequence, std::span(sequence.tokens).subspan(static_cast<size_t>(sequence.n_prompt)));
        scheduler_.remove(choice.sequence);
    }
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
        draw_held_rows(request, index);
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
        draw_held_rows(request, index);
    });
}

// Forced tokens that are known before a step save one.  So the mask is waited for, a part of a step, as long as masks come
// with forced tokens.
void DecoderLoop::await_mask(MaskLease &masks, int choice, double end_s) {
    const double now = now_s(), wait_s = masks.forced_rate() * (end_s - now);
    if (wait_s < least_wait_s) return;
    const auto wait =
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(wait_s));
    masks.wait_provided(choice, std::chrono::steady_clock::now() + wait);
}

// Proposes tokens for the sequences that will draw in the next step.
void DecoderLoop::draft() {
    if (speculator_.empty()) return;
    std::vector<Speculator::Wish> wishes;
    std::vector<Outlook> outlooks;
    outlooks.reserve(scheduler_.running().size());
    int n_drawn = 0;
    int64_t n_rows = 0;
    for (const Sequence *s : scheduler_.running()) n_rows += s->has_work() ? s->n_pending() : 0;
    n_rows = std::min<int64_t>(n_rows, pace_.tokens());
    const double wait_end_s = now_s() + most_waited * speculator_.step_seconds(static_cast<int>(n_rows));
    for (const Sequence *s : scheduler_.running()) {
        if (!s->has_work()) continue;
        const int64_t limit = scheduler_.draft_limit(*s);
        n_drawn += limit > 0 || s->is_decoding();
        const auto [request, choice] = owners_.at(s->id);
        if (limit == 0 || request->drafters == 0) continue;
        Speculator::Wish wish;
        wish.sequence = s->id;
        wish.tokens = s->tokens;
        wish.n_prompt = s->n_prompt;
        wish.max_tokens = s->max_tokens;
        wish.salt = request->request.salt;
        wish.prediction = request->request.prediction;
        wish.most = static_cast<int>(std::min<int64_t>(limit, speculator_.most()));
        wish.room = static_cast<int>(std::min<int64_t>(limit, max_draft_depth + speculator_.most()));
        wish.drafters = request->drafters;
        if (request->masks) {
            if ((request->drafters & speculator_.certain()) != 0) await_mask(*request->masks, choice, wait_end_s);
            outlooks.push_back(request->masks->outlook(choice));
            wish.forced = outlooks.back().forced;
            wish.mask = outlooks.back().mask;
        }
        wishes.push_back(std::move(wish));
    }
    if (wishes.empty()) return;
    speculator_.propose(wishes, n_drawn, static_cast<int>(n_rows));
    for (const Speculator::Wish &wish : wishes) scheduler_.draft(wish.sequence, wish.proposal);
}

bool DecoderLoop::step() {
    draft();
    const Plan plan = scheduler_.plan_within(now_s(), pace_.tokens());
    if (plan.items.empty()) {
        if (!plan.edits.empty()) run(plan);
        return !plan.preempted.empty();
    }
    announce(plan);
    const double started_s = now_s();
    if (!run(plan)) return true;
    const double step_s = now_s() - started_s;
    pace_.took(plan.n_tokens, step_s);
    speculator_.took(plan.n_tokens, step_s, plan.n_logit_rows == plan.n_tokens);
    scheduler_.commit(plan);
    for (const PlanItem &item : plan.items) {
        const ItemRows rows = runner_.next_rows(item);
        const auto owner = owners_.find(item.id);
        if (owner == owners_.end()) continue; // gone when another choice failed its request
        tell_progress(*owner->second.request, item);
        if (item.n_logit_rows == 0) continue;
        const Owner at = owner->second;
        guarded(*at.request, [&] { take_rows(at, item, rows); });
    }
    ++totals_.n_steps;
    totals_.n_step_sequences += static_cast<int64_t>(plan.items.size());
    if (checks_every_step) check();
    return true;
}

void DecoderLoop::announce(const Plan &plan) {
    for (SequenceId id : plan.admitted) {
        ActiveRequest &request = *owners_.at(id).request;
        if (request.admitted_s) continue; // it was preempted meanwhile
        request.admitted_s = now_s();
        request.n_cached = scheduler_.sequence(id).n_cached;
        if (request.request.admission != Admission::announced) continue;
        events_.push_back(request.event(EventKind::admitted, 0));
        events_.back().n_cached_tokens = request.n_cached;
    }
}

void DecoderLoop::tell_progress(const ActiveRequest &request, const PlanItem &item) {
    if (request.prompt_done || request.request.admission != Admission::announced) return;
    events_.push_back(request.event(EventKind::progress, 0));
    const int64_t n_read = request.n_source > 0 ? request.n_source : item.first + item.n_tokens;
    events_.back().n_read_tokens = std::min(n_read, request.n_prompt_tokens());
}

HiddenStates DecoderLoop::hidden_for(const Plan &plan) const {
    const bool wanted = std::ranges::any_of(plan.items, [&](const PlanItem &item) {
        const auto owner = owners_.find(item.id);
        return owner != owners_.end() && owner->second.request->request.task == Task::embedding;
    });
    return wanted ? HiddenStates::wanted : HiddenStates::unwanted;
}

bool DecoderLoop::run(const Plan &plan) {
    ErrorKind kind = ErrorKind::internal;
    std::string message;
    bool edited = false;
    try {
        runner_.make_edits(plan);
        edited = true;
        if (!plan.items.empty()) runner_.run(plan, scheduler_.pool(), hidden_for(plan));
        return true;
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
        return false;
    }
    for (const PlanItem &item : plan.items) // what their slots hold is unknown
        if (const auto owner = owners_.find(item.id); owner != owners_.end()) {
            const RequestId id = owner->second.request->id;
            fail(*owner->second.request, kind, message);
            requests_.erase(id);
        }
    return false;
}

void DecoderLoop::take_rows(const Owner &owner, const PlanItem &item, const ItemRows &rows) {
    ActiveRequest &request = *owner.request;
    if (request.prompt_done) {
        if (item.n_drafted > 0) speculator_.planned(item.id, item.n_drafted);
        request.choices[static_cast<size_t>(owner.choice)].n_drafted += item.n_drafted;
        return draw_rows(request, owner.choice, rows);
    }
    if (auto event = request.read_prompt(item.first + item.n_tokens - item.n_logit_rows, rows,
                                         scheduler_.sequence(item.id).tokens))
        events_.push_back(std::move(*event));
    if (item.first + item.n_tokens < request.n_prompt) return;
    request.prompt_done = true;
    if (request.request.task == Task::embedding) events_.push_back(request.embedding_event());
    for (int choice = 0; choice < request.n_choices(); ++choice) // one row serves every choice
        if (request.request.task == Task::generate)
            next_token(request, choice, rows.last());
        else
            end(request, choice, {FinishReason::length, {}});
}

bool DecoderLoop::awaits_token(const Choice &choice) const {
    return choice.state == ChoiceState::generating && !scheduler_.sequence(choice.sequence).has_work();
}

// A row after a drafted token counts once that token was drawn.
void DecoderLoop::draw_rows(ActiveRequest &request, int index, const ItemRows &rows) {
    Choice &choice = request.choices[static_cast<size_t>(index)];
    size_t i = 0;
    do next_token(request, index, rows.row(i++));
    while (i < rows.n && awaits_token(choice));
    if (i == rows.n || choice.state == ChoiceState::generating || choice.state == ChoiceState::ended) return;
    const std::span<float> rest = rows.logits.subspan(i * (rows.logits.size() / rows.n));
    choice.held_rows.assign(rest.begin(), rest.end());
}

void DecoderLoop::draw_held_rows(ActiveRequest &request, int index) {
    Choice &choice = request.choices[static_cast<size_t>(index)];
    const auto n_vocab = static_cast<ptrdiff_t>(request.vocab->n_vocab);
    while (!choice.held_rows.empty() && awaits_token(choice)) {
        std::vector<float> row(choice.held_rows.begin(), choice.held_rows.begin() + n_vocab);
        choice.held_rows.erase(choice.held_rows.begin(), choice.held_rows.begin() + n_vocab);
        next_token(request, index, {row});
    }
    if (choice.state == ChoiceState::generating || choice.state == ChoiceState::ended) choice.held_rows.clear();
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
        append(request.choices[static_cast<size_t>(index)], token);
    }
}

void DecoderLoop::append(Choice &choice, int32_t token) {
    const Sequence &sequence = scheduler_.sequence(choice.sequence);
    const bool was_drafted = sequence.n_unverified > 0;
    scheduler_.append(choice.sequence, token);
    if (!was_drafted) return;
    const bool is_right = !sequence.has_work();
    choice.n_accepted += is_right;
    speculator_.judge(choice.sequence, is_right);
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
    stats.drafters = speculator_.stats();
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
