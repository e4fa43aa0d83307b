// The parts of the decoder's loop that ask for drafts.
#include <algorithm>
#include <utility>

#include "engine/decoding/decoder_loop.h"

namespace quire {
namespace {

constexpr double most_patience = 2.0; // in steps

} // namespace

void DecoderLoop::await_mask(MaskLease &masks, int choice, double start_s, double patience_s) {
    if (masks.seconds() > patience_s) return; // it is likely to be late anyway
    const std::chrono::duration<double> left(start_s + patience_s - now_s());
    masks.wait_provided(choice, std::chrono::steady_clock::now() +
                                    std::chrono::duration_cast<std::chrono::steady_clock::duration>(left));
}

// Tokens that a grammar forces at the start of an answer are computed beside the end of its prompt.
void DecoderLoop::draft_beginning(const Sequence &sequence) {
    const auto [request, choice] = owners_.at(sequence.id);
    if (!request->masks || sequence.n_tokens() > sequence.n_prompt || sequence.n_pending() > pace_.tokens()) return;
    const int64_t limit = scheduler_.draft_limit(sequence);
    if (limit == 0 || (request->drafters & speculator_.certain()) == 0) return;
    await_mask(*request->masks, choice, request->submitted_s, speculator_.step_seconds(1)); // the step that it saves
    const Outlook outlook = request->masks->outlook(choice);
    scheduler_.draft(sequence.id, speculator_.begin(sequence.id, outlook.forced, limit));
}

void DecoderLoop::draft_beginnings() {
    if (speculator_.certain() == 0) return;
    for (const Sequence *s : scheduler_.running()) draft_beginning(*s);
    const auto n_most = static_cast<size_t>(scheduler_.config().max_running);
    const size_t n_free = n_most - std::min(n_most, scheduler_.running().size());
    for (size_t i = 0; i < std::min(n_free, scheduler_.waiting().size()); ++i)
        draft_beginning(*scheduler_.waiting()[i]);
}

// Forced tokens that are known before a step save one.  So masks are waited for, as long as the steps take that are
// likely to be saved.  Events come after that, as who reads them wants the interpreter that computes masks.
void DecoderLoop::await_forced_text() {
    std::vector<Owner> awaited;
    int n_drawn = 0;
    for (const Sequence *s : scheduler_.running()) {
        if (!s->has_work() || scheduler_.draft_limit(*s) == 0) continue;
        ++n_drawn;
        const Owner owner = owners_.at(s->id);
        if (owner.request->masks && (owner.request->drafters & speculator_.certain()) != 0) awaited.push_back(owner);
    }
    if (awaited.empty()) return;
    const double n_forced = awaited.front().request->masks->n_forced();
    const double share = n_forced * static_cast<double>(awaited.size()) / n_drawn;
    const double start_s = now_s(), patience_s = std::min(most_patience, share) * speculator_.step_seconds(n_drawn);
    for (const Owner &owner : awaited) await_mask(*owner.request->masks, owner.choice, start_s, patience_s);
}

// Proposes tokens for the sequences that will draw in the next step.
void DecoderLoop::draft() {
    if (speculator_.empty()) return;
    draft_beginnings();
    if (!std::exchange(awaited_, false)) await_forced_text();
    std::vector<Speculator::Wish> wishes;
    std::vector<Outlook> outlooks;
    outlooks.reserve(scheduler_.running().size());
    int n_drawn = 0;
    int64_t n_rows = 0;
    for (const Sequence *s : scheduler_.running()) n_rows += s->has_work() ? s->n_pending() : 0;
    n_rows = std::min<int64_t>(n_rows, pace_.tokens());
    for (const Sequence *s : scheduler_.running()) {
        if (!s->has_work()) continue;
        const int64_t limit = scheduler_.draft_limit(*s);
        n_drawn += limit > 0 || s->is_decoding();
        const auto [request, choice] = owners_.at(s->id);
        if (limit == 0 || request->drafters == 0 || s->n_tokens() <= s->n_prompt) continue;
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

// Masks along the drafts are computed while the step runs.
void DecoderLoop::prefetch_masks(const Plan &plan) {
    for (const PlanItem &item : plan.items) {
        if (item.n_drafted == 0) continue;
        const auto [request, choice] = owners_.at(item.id);
        if (request->masks) request->masks->prefetch(choice, item.sequence->drafted);
    }
}

} // namespace quire
