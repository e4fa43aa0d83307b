// The parts of the decoder's loop that draw tokens from rows of logits.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "engine/decoding/decoder_loop.h"

namespace quire {

void DecoderLoop::provide_logits(RequestId id, int index, std::span<float> logits) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return; // cancelled meanwhile
    ActiveRequest &request = *found->second;
    guarded(request, [&] {
        if (index < 0 || index >= request.n_choices() ||
            request.choices[static_cast<size_t>(index)].state != ChoiceState::awaiting_logits)
            throw RequestError("decoder", cat("choice ", index, " does not wait for logits"));
        Choice &choice = request.choices[static_cast<size_t>(index)];
        std::ranges::copy(logits,
                          choice.held_rows.begin() + static_cast<ptrdiff_t>(choice.n_held_drawn * logits.size()));
        draw_held(request, index);
    });
}

void DecoderLoop::resume(RequestId id, int index) {
    const auto found = requests_.find(id);
    if (found == requests_.end()) return; // cancelled meanwhile
    ActiveRequest &request = *found->second;
    if (request.choices[static_cast<size_t>(index)].state != ChoiceState::awaiting_mask) return;
    guarded(request, [&] { draw_held(request, index); });
}

void DecoderLoop::take_rows(const Owner &owner, const PlanItem &item, const ItemRows &rows) {
    ActiveRequest &request = *owner.request;
    if (item.n_drafted > 0) speculator_.planned(item.id, item.n_drafted);
    request.choices[static_cast<size_t>(owner.choice)].n_drafted += item.n_drafted;
    if (request.prompt_done) return draw_rows(request, owner.choice, rows);
    if (auto event = request.read_prompt(item.first + item.n_tokens - item.n_logit_rows, rows,
                                         scheduler_.sequence(item.id).tokens))
        events_.push_back(std::move(*event));
    if (item.first + item.n_tokens < request.n_prompt) return;
    request.prompt_done = true;
    if (request.request.task == Task::embedding) events_.push_back(request.embedding_event());
    const ItemRows drawn_from = rows.last(1 + static_cast<size_t>(item.n_drafted));
    for (int choice = 0; choice < request.n_choices(); ++choice) // one row serves every choice
        if (request.request.task == Task::generate)
            draw_rows(request, choice, drawn_from);
        else
            end(request, choice, {FinishReason::length, {}});
}

bool DecoderLoop::awaits_token(const Choice &choice) const {
    return choice.state == ChoiceState::generating && !scheduler_.sequence(choice.sequence).has_work();
}

// A row after a drafted token counts once that token was drawn.
void DecoderLoop::draw_rows(ActiveRequest &request, int index, const ItemRows &rows) {
    Choice &choice = request.choices[static_cast<size_t>(index)];
    for (size_t i = 0; i < rows.n; ++i) {
        if (!next_token(request, index, rows.row(i))) {
            const ItemRows rest = rows.last(rows.n - i);
            if (choice.state == ChoiceState::awaiting_mask)
                late_.push_back({request.id, index, rest});
            else
                choice.held_rows.assign(rest.logits.begin(), rest.logits.end());
            return;
        }
        if (!awaits_token(choice)) return;
    }
}

// Draws from the rows whose masks were late, of which the first waits.
void DecoderLoop::draw_late_rows(const Late &late) {
    const auto found = requests_.find(late.request);
    if (found == requests_.end()) return; // it failed meanwhile
    ActiveRequest &request = *found->second;
    guarded(request, [&] {
        if (!request.take_mask(late.choice)) {
            late_.push_back(late);
            return;
        }
        draw(request, late.choice, late.rows.row(0));
        if (late.rows.n > 1 && awaits_token(request.choices[static_cast<size_t>(late.choice)]))
            draw_rows(request, late.choice, late.rows.last(late.rows.n - 1));
    });
}

// How long masks are waited for that are late after a step which took step_s.  Without its token a sequence is not in
// the next step, which takes as long for the others; and the wait is lost to those.
double DecoderLoop::late_mask_patience(double step_s) {
    const auto n_ready = std::ranges::count_if(scheduler_.running(), [](const Sequence *s) { return s->has_work(); });
    const double share = n_ready == 0 ? 1.0 : static_cast<double>(late_.size()) / static_cast<double>(n_ready);
    const double patience_s = step_s * std::min(share, 1.0);
    const auto request = requests_.find(late_.front().request);
    const bool is_hopeless = request != requests_.end() && request->second->masks->seconds() > patience_s;
    return is_hopeless ? 0 : patience_s;
}

double DecoderLoop::draw_late(double step_s) {
    const auto started = std::chrono::steady_clock::now();
    const auto waited_s = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    };
    while (!late_.empty()) {
        for (const Late &late : std::exchange(late_, {})) draw_late_rows(late);
        if (late_.empty()) break;
        const std::chrono::duration<double> patience(late_mask_patience(step_s));
        if (waited_s() >= patience.count()) break;
        const Late &first = late_.front();
        if (const auto found = requests_.find(first.request); found != requests_.end())
            found->second->masks->wait_provided(
                first.choice, started + std::chrono::duration_cast<std::chrono::steady_clock::duration>(patience));
    }
    for (const Late &late : std::exchange(late_, {})) { // the next step overwrites them
        const auto found = requests_.find(late.request);
        if (found == requests_.end()) continue;
        Choice &choice = found->second->choices[static_cast<size_t>(late.choice)];
        choice.held_rows.assign(late.rows.logits.begin(), late.rows.logits.end());
    }
    return waited_s();
}

// Draws from the rows that were held, of which the first has what it waited for.
void DecoderLoop::draw_held(ActiveRequest &request, int index) {
    Choice &choice = request.choices[static_cast<size_t>(index)];
    const auto n_vocab = static_cast<size_t>(request.vocab->n_vocab);
    const auto row = [&] {
        return LogitRow{std::span(choice.held_rows).subspan(choice.n_held_drawn * n_vocab, n_vocab)};
    };
    if (!draw_when_masked(request, index, row())) return;
    while (++choice.n_held_drawn * n_vocab < choice.held_rows.size() && awaits_token(choice))
        if (!next_token(request, index, row())) return;
    choice.held_rows = {};
    choice.n_held_drawn = 0;
}

bool DecoderLoop::next_token(ActiveRequest &request, int index, const LogitRow &row) {
    if (request.request.processor == LogitsProcessor::none) return draw_when_masked(request, index, row);
    Choice &choice = request.choices[static_cast<size_t>(index)];
    choice.state = ChoiceState::awaiting_logits;
    Event event = request.event(EventKind::logits, index);
    event.first_position = scheduler_.sequence(choice.sequence).n_tokens() - 1;
    event.n_logit_rows = 1;
    event.logits.assign(row.logits.begin(), row.logits.end());
    for (const HeldToken &held : choice.held_tokens) event.token_ids.push_back(held.delta.token_ids.back());
    events_.push_back(std::move(event));
    return false;
}

bool DecoderLoop::draw_when_masked(ActiveRequest &request, int index, const LogitRow &row) {
    if (request.take_mask(index)) {
        draw(request, index, row);
        return true;
    }
    Choice &choice = request.choices[static_cast<size_t>(index)];
    totals_.n_late_masks += choice.state != ChoiceState::awaiting_mask;
    choice.state = ChoiceState::awaiting_mask;
    return false;
}

void DecoderLoop::draw(ActiveRequest &request, int index, const LogitRow &row) {
    const SequenceId sequence = request.choices[static_cast<size_t>(index)].sequence;
    Event delta;
    while (true) {
        delta = request.sample(index, row, scheduler_.sequence(sequence).tokens, now_s());
        ++totals_.n_generated_tokens;
        if (request.masks) ++totals_.n_masked_tokens;
        const int64_t n_taken_back = request.take_back(index, delta);
        if (n_taken_back == 0) break;
        if (n_taken_back > 1) return scheduler_.take_back(sequence, n_taken_back - 1);
        request.take_mask(index); // the same one, for another token of this row
    }
    const int32_t token = delta.token_ids.back();
    const auto ending = request.ending(index, delta);
    request.release(index, std::move(delta), ending.has_value(), events_);
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

} // namespace quire
