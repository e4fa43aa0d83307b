#include "engine/decoding/decoder_loop.h"

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

} // namespace

// A step with fewer tokens takes as long: its matrix products still read every weight.
constexpr int least_step_tokens = 64;

DecoderLoop::DecoderLoop(const std::shared_ptr<Executor> &executor, const DecoderConfig &config,
                         std::vector<std::shared_ptr<Drafter>> drafters)
    : runner_(executor), scheduler_(scheduler_config(config, *executor), cache_pool(*executor)),
      pace_(config.step_s, least_step_tokens, scheduler_.config().max_step_tokens),
      speculator_(std::move(drafters), config.drafts) {
    // Nothing is found in a cache where a prompt is one item.
    if (!config.tiers.is_used() || scheduler_.pool().keeps_nothing() || executor->undivided_prompts()) return;
    tiers_ = std::make_shared<CacheTiers>(config.tiers, executor->cache());
    runner_.use_tiers(tiers_);
    scheduler_.use_tiers(tiers_);
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

void DecoderLoop::pause(RequestId id, bool paused) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    for (const Choice &choice : found->second->choices) {
        if (choice.state == ChoiceState::ended) continue;
        paused ? scheduler_.pause(choice.sequence) : scheduler_.resume(choice.sequence);
    }
}

void DecoderLoop::cancel_all() {
    for (auto &[id, request] : requests_) cancel(*request);
    requests_.clear();
}

PinnedPrefixes::Pinned DecoderLoop::pin(ActiveRequest &request) { return scheduler_.pin(request.take_spec()); }

bool DecoderLoop::step() {
    if (frozen_) return false;
    draft();
    const Plan plan = scheduler_.plan_within(now_s(), pace_.tokens());
    if (plan.items.empty()) {
        if (!plan.edits.empty()) run(plan);
        return !plan.preempted.empty() || !plan.yielded.empty() || plan.n_loaded > 0;
    }
    announce(plan);
    prefetch_masks(plan);
    const double started_s = now_s();
    if (!run(plan)) return true;
    const double step_s = now_s() - started_s;
    pace_.took(plan.n_tokens, step_s);
    if (tiers_) tiers_->computed(plan.n_tokens, step_s);
    scheduler_.commit(plan);
    for (const PlanItem &item : plan.items) {
        const std::span<const float> features = runner_.features(item);
        const ItemRows rows = runner_.next_rows(item);
        const auto owner = owners_.find(item.id);
        if (owner == owners_.end()) continue; // gone when another choice failed its request
        tell_progress(*owner->second.request, item);
        show_features(*owner->second.request, item, features);
        if (item.n_logit_rows == 0) continue;
        const Owner at = owner->second;
        guarded(*at.request, [&] { take_rows(at, item, rows); });
    }
    const double waited_s = draw_late(step_s);
    speculator_.took(plan.n_tokens, step_s + waited_s, plan.n_logit_rows == plan.n_tokens);
    await_forced_text();
    awaited_ = true;
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
        request.n_from_host = scheduler_.sequence(id).n_from_host;
        request.n_from_disk = scheduler_.sequence(id).n_from_disk;
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

void DecoderLoop::show_features(const ActiveRequest &request, const PlanItem &item, std::span<const float> features) {
    if (request.request.task == Task::generate && speculator_.reads_features(request.drafters))
        speculator_.see(item.id, request.drafters, item.first, features);
}

StepWants DecoderLoop::wants_of(const Plan &plan) const {
    StepWants wants;
    for (const PlanItem &item : plan.items) {
        const auto found = owners_.find(item.id);
        if (found == owners_.end()) {
            wants.likeliest.insert(wants.likeliest.end(), static_cast<size_t>(item.n_logit_rows), 0);
            continue;
        }
        const auto [request, choice] = found->second;
        if (request->request.task == Task::embedding) wants.hidden = HiddenStates::wanted;
        wants.likeliest.insert(wants.likeliest.end(), static_cast<size_t>(item.n_logit_rows),
                               request->n_likeliest(choice));
    }
    return wants;
}

bool DecoderLoop::run(const Plan &plan) {
    ErrorKind kind = ErrorKind::internal;
    std::string message;
    bool edited = false;
    try {
        runner_.make_edits(plan);
        edited = true;
        if (!plan.items.empty()) runner_.run(plan, scheduler_.pool(), wants_of(plan));
        return true;
    } catch (const Error &error) {
        kind = error.kind();
        message = error.what();
    } catch (const std::exception &error) {
        message = error.what();
    }
    ++totals_.n_failed_steps;
    if (!edited || kind == ErrorKind::device) { // contents of the cache are lost, or it is unknown where they lie
        scheduler_.forget_published();
        fail_all(kind, message);
        return false;
    }
    for (const PlanItem &item : plan.items) // contents of their slots are unknown
        if (const auto owner = owners_.find(item.id); owner != owners_.end()) {
            const RequestId id = owner->second.request->id;
            fail(*owner->second.request, kind, message);
            requests_.erase(id);
        }
    return false;
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
    const PinnedPrefixes &pins = scheduler_.pins();
    stats.n_pins = pins.size();
    stats.n_pinned_bytes = static_cast<int64_t>(pins.held_bytes());
    stats.n_most_pinned_bytes = static_cast<int64_t>(pins.most_bytes());
    stats.n_pins_given_way = pins.n_given_way();
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
