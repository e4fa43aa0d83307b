#include "engine/decoding/active_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"

namespace quire {
namespace {

void check_prompt(const Request &r, const VocabInfo &vocab, int64_t n_ctx, bool is_source) {
    if (r.token_ids.empty()) throw RequestError("request", "empty prompt");
    for (size_t i = 0; i < r.token_ids.size(); ++i)
        if (!vocab.contains(r.token_ids[i]))
            throw RequestError("request", cat("token id ", r.token_ids[i], " at position ", i,
                                              " is out of range: expected 0 to ", vocab.n_vocab - 1));
    const auto n_prompt = static_cast<int64_t>(r.token_ids.size());
    if (is_source && n_prompt > n_ctx)
        throw RequestError(
            "request", cat("the prompt has ", n_prompt, " tokens, which exceeds the context of ", n_ctx, " tokens"));
    if (r.task == Task::generate && !is_source ? n_prompt >= n_ctx : n_prompt > n_ctx)
        throw RequestError("request",
                           cat("the prompt has ", n_prompt,
                               " tokens, which leaves no room for an answer in the context of ", n_ctx, " tokens"));
}

void check_pair(const Request &r) {
    if (!r.second_text) return;
    if (r.task != Task::embedding) throw RequestError("request", "second_text needs embedding, of an encoder");
    const auto n_prompt = static_cast<int64_t>(r.token_ids.size());
    if (*r.second_text < 1 || *r.second_text > n_prompt)
        throw RequestError(
            "request", cat("second_text is ", *r.second_text, ": expected 1 to ", n_prompt, ", the prompt's tokens"));
}

void check_visible(const Request &r, const VocabInfo &vocab) {
    for (const auto &[token, text] : r.visible_tokens)
        if (!vocab.contains(token))
            throw RequestError("request",
                               cat("visible_tokens has token ", token, ": expected ids below ", vocab.n_vocab));
}

void check_prediction(const Request &r, const VocabInfo &vocab) {
    for (int32_t token : r.prediction)
        if (!vocab.contains(token))
            throw RequestError("request", cat("prediction has token ", token, ": expected ids below ", vocab.n_vocab));
}

void check_task(const Request &r) {
    if ((r.task == Task::generate) == (r.params == nullptr))
        throw RequestError("request", "params missing or unexpected: exactly requests that generate have them");
    if (r.task == Task::generate) return;
    const char *task = r.task == Task::embedding ? "embedding" : "prompt_logits";
    if (r.processor == LogitsProcessor::outside)
        throw RequestError("request", cat("external_logits cannot be combined with ", task, ", which samples nothing"));
    if (r.constraint == Constraint::grammar)
        throw RequestError("request", cat("grammar cannot be combined with ", task, ", which samples nothing"));
}

// Where a conversation is likely to be taken up: after its first message, which many share, and after the last two.  A
// message ends with a token that ends a generation; text that is not the template's never holds one.
std::vector<int64_t> message_ends(std::span<const int32_t> tokens, const VocabInfo &vocab) {
    std::vector<int64_t> ends;
    for (size_t i = 0; i < tokens.size(); ++i)
        if (vocab.is_eog(tokens[i])) {
            if (ends.size() == 3) ends.erase(ends.begin() + 1);
            ends.push_back(static_cast<int64_t>(i) + 1);
        }
    return ends;
}

} // namespace

ActiveRequest::ActiveRequest(Request given, std::shared_ptr<const VocabInfo> vocab_info, int64_t n_ctx,
                             std::optional<int32_t> start)
    : request(std::move(given)), vocab(std::move(vocab_info)), decoder_start(start),
      n_source(hears()         ? request.media->spans.front().n_rows
               : decoder_start ? static_cast<int64_t>(request.token_ids.size())
                               : 0),
      n_prompt(decoder_start && !hears() ? 1 : static_cast<int64_t>(request.token_ids.size())), max_tokens(n_prompt) {
    check_task(request);
    check_prompt(request, *vocab, n_ctx, decoder_start && !hears());
    check_pair(request);
    check_visible(request, *vocab);
    check_prediction(request, *vocab);
    if (request.task != Task::generate) {
        choices.push_back({{}, ChoiceState::generating, std::nullopt, nullptr, StopMatcher({}), PhraseBans({})});
        return;
    }
    const SamplingParams &p = *request.params;
    p.validate(*vocab);
    max_tokens = p.max_tokens ? std::min(n_ctx, n_prompt + *p.max_tokens) : n_ctx;
    const StopText mode = p.include_stop_str_in_output ? StopText::include : StopText::exclude;
    for (int i = 0; i < p.n; ++i)
        choices.push_back({{},
                           ChoiceState::generating,
                           Sampler(request.params, vocab, i, request.bad_sequences),
                           nullptr,
                           StopMatcher(p.stop, mode),
                           PhraseBans(p.banned_strings)});
}

SequenceSpec ActiveRequest::take_spec() {
    std::vector<int32_t> source;
    PrefixContext context{request.adapters_name, {}, request.salt, request.late_adapters};
    if (std::ranges::any_of(request.steering, [](float each) { return each != 0.0f; })) {
        const auto *bytes = reinterpret_cast<const char *>(request.steering.data());
        context.adapter += cat("steering ", request.steering.size(), ' ');
        context.adapter.append(bytes, request.steering.size() * sizeof(float));
    }
    std::shared_ptr<const PromptMedia> source_media;
    if (hears()) {
        // The rows depend on the sound alone, which its digest names.
        source.assign(static_cast<size_t>(n_source), 0);
        context.media = request.media->spans.front().digest;
        source_media = std::exchange(request.media, nullptr);
    } else if (decoder_start)
        source = std::exchange(request.token_ids, {*decoder_start});
    const std::vector<int64_t> ends = message_ends(request.token_ids, *vocab);
    request.snapshot_positions.insert(request.snapshot_positions.end(), ends.begin(), ends.end());
    return {std::move(request.token_ids),
            max_tokens,
            std::move(context),
            request.priority,
            request.key,
            wants_prompt_rows() ? LogitRows::every : LogitRows::last,
            std::move(request.snapshot_positions),
            request.second_text.value_or(no_second_text),
            std::move(source),
            std::move(request.media),
            std::move(source_media),
            request.adapters,
            request.steering};
}

int32_t ActiveRequest::n_likeliest(int index) const {
    const Choice &choice = choices[static_cast<size_t>(index)];
    const bool draws = request.task == Task::generate && (prompt_done || !wants_prompt_rows());
    if (!draws || masks || request.processor != LogitsProcessor::none) return 0;
    return choice.sampler->n_likeliest(choice.n_generated, choice.bans.here().size());
}

bool ActiveRequest::wants_prompt_rows() const {
    switch (request.task) {
    case Task::generate: return request.params->prompt_logprobs.has_value();
    case Task::prompt_logits: return true;
    case Task::embedding: return request.pooling != Pooling::last;
    }
    return false;
}

std::optional<Event> ActiveRequest::read_prompt(int64_t first, const ItemRows &rows, std::span<const int32_t> tokens) {
    if (request.task == Task::embedding)
        add_hidden(first, rows);
    else if (request.task == Task::prompt_logits) {
        Event made = event(EventKind::prompt_logits, 0);
        made.first_position = first;
        made.n_logit_rows = static_cast<int64_t>(rows.n);
        made.logits.assign(rows.logits.begin(), rows.logits.end());
        return made;
    } else if (wants_prompt_rows())
        add_log_probs(first, rows, tokens);
    return std::nullopt;
}

void ActiveRequest::add_hidden(int64_t first, const ItemRows &rows) {
    const size_t size = rows.hidden.size() / rows.n;
    if (request.pooling == Pooling::none || request.pooling == Pooling::taps) {
        const std::span<const float> added = request.pooling == Pooling::taps ? rows.taps : rows.hidden;
        hidden_rows.insert(hidden_rows.end(), added.begin(), added.end());
        n_hidden_rows += static_cast<int64_t>(rows.n);
        return;
    }
    if (request.pooling == Pooling::cls) {
        if (first == 0) hidden_sum.assign(rows.hidden.begin(), rows.hidden.begin() + static_cast<ptrdiff_t>(size));
        n_hidden_rows = 1;
        return;
    }
    if (request.pooling == Pooling::max) {
        if (hidden_sum.empty()) hidden_sum.assign(size, -std::numeric_limits<double>::infinity());
        for (size_t i = 0; i < rows.hidden.size(); ++i)
            hidden_sum[i % size] = std::max(hidden_sum[i % size], static_cast<double>(rows.hidden[i]));
        n_hidden_rows = 1;
        return;
    }
    hidden_sum.resize(size);
    for (size_t i = 0; i < rows.hidden.size(); ++i) hidden_sum[i % size] += rows.hidden[i];
    n_hidden_rows += static_cast<int64_t>(rows.n);
}

void ActiveRequest::add_log_probs(int64_t first, const ItemRows &rows, std::span<const int32_t> tokens) {
    const size_t n_vocab = rows.logits.size() / rows.n;
    const int64_t end = std::min(first + static_cast<int64_t>(rows.n), n_prompt - 1);
    for (int64_t position = first; position < end; ++position)
        prompt_logprobs.push_back(
            log_probs_of(rows.logits.subspan(static_cast<size_t>(position - first) * n_vocab, n_vocab),
                         tokens[static_cast<size_t>(position) + 1], *request.params->prompt_logprobs));
}

Event ActiveRequest::embedding_event() {
    Event made = event(EventKind::embedding, 0);
    if (n_hidden_rows > 0 && !hidden_rows.empty()) {
        made.n_logit_rows = n_hidden_rows;
        made.logits = std::exchange(hidden_rows, {});
        return made;
    }
    made.logits.reserve(hidden_sum.size());
    for (double sum : hidden_sum) made.logits.push_back(static_cast<float>(sum / static_cast<double>(n_hidden_rows)));
    return made;
}

bool ActiveRequest::ended() const {
    return std::ranges::all_of(choices, [](const Choice &c) { return c.state == ChoiceState::ended; });
}

Event ActiveRequest::event(EventKind kind, int choice) const {
    Event event;
    event.request = id;
    event.choice = choice;
    event.kind = kind;
    return event;
}

Event ActiveRequest::sample(int index, const LogitRow &row, std::span<const int32_t> tokens, double now_s) {
    Choice &choice = choices[static_cast<size_t>(index)];
    SampledToken token = choice.sampler->sample(row, tokens, n_prompt, choice.mask.get(), choice.bans.here());
    choice.mask.reset();
    choice.state = ChoiceState::generating;
    if (choice.n_generated++ == 0) choice.first_token_s = now_s;
    Event delta = event(EventKind::delta, index);
    delta.token_ids = {token.id};
    if (request.params->logprobs) delta.logprobs.push_back(std::move(token));
    if (index == 0) delta.prompt_logprobs = std::exchange(prompt_logprobs, {});
    return delta;
}

int64_t ActiveRequest::take_back(int index, Event &delta) {
    Choice &choice = choices[static_cast<size_t>(index)];
    const int32_t token = delta.token_ids.back();
    if (choice.bans.empty() || is_stop_token(token)) return 0; // which shows nothing
    const PhraseBans::Verdict verdict = choice.bans.push(token, shown(token));
    const size_t n = verdict.n_taken_back;
    choice.n_released = verdict.n_released;
    if (n == 0) {
        choice.held_tokens.push_back({{}, choice.stop_matcher});
        return 0;
    }
    const auto first = choice.held_tokens.end() - static_cast<ptrdiff_t>(n - 1);
    if (n > 1) choice.stop_matcher = std::move(first->matcher_before);
    Event &earliest = n > 1 ? first->delta : delta;
    if (!earliest.prompt_logprobs.empty()) prompt_logprobs = std::move(earliest.prompt_logprobs);
    choice.held_tokens.erase(first, choice.held_tokens.end());
    choice.n_generated -= static_cast<int64_t>(n);
    choice.sampler->rewind(choice.n_generated);
    if (masks && n > 1) masks->rewind(index, choice.n_generated);
    return static_cast<int64_t>(n);
}

void ActiveRequest::release(int index, Event delta, bool is_last, std::vector<Event> &events) {
    Choice &choice = choices[static_cast<size_t>(index)];
    if (choice.bans.empty()) return events.push_back(std::move(delta));
    std::vector<HeldToken> &held = choice.held_tokens;
    const bool is_held = !is_stop_token(delta.token_ids.back());
    if (is_held) held.back().delta = std::move(delta);
    const auto end = is_last ? held.end() : held.begin() + static_cast<ptrdiff_t>(choice.n_released);
    for (auto token = held.begin(); token != end; ++token) events.push_back(std::move(token->delta));
    held.erase(held.begin(), end);
    if (!is_held) events.push_back(std::move(delta));
}

bool ActiveRequest::take_mask(int index) {
    Choice &choice = choices[static_cast<size_t>(index)];
    if (masks && !choice.mask) choice.mask = masks->take(index, choice.n_generated);
    return !masks || choice.mask;
}

void ActiveRequest::ask_for_mask(int index, int32_t token) {
    if (masks) masks->ask(index, choices[static_cast<size_t>(index)].n_generated, token);
}

const std::string &ActiveRequest::shown(int32_t token) const {
    const auto found = std::ranges::find(request.visible_tokens, token, [](const auto &entry) { return entry.first; });
    return found != request.visible_tokens.end() ? found->second : vocab->token_bytes[static_cast<size_t>(token)];
}

bool ActiveRequest::is_stop_token(int32_t token) const {
    const SamplingParams &p = *request.params;
    return (vocab->is_eog(token) && !p.ignore_eos) || std::ranges::count(p.stop_token_ids, token) > 0;
}

std::optional<Ending> ActiveRequest::ending(int index, Event &delta) {
    Choice &choice = choices[static_cast<size_t>(index)];
    const SamplingParams &p = *request.params;
    const int32_t token = delta.token_ids.back();
    const bool stops = is_stop_token(token);
    if (!stops || p.include_stop_str_in_output) delta.text = choice.stop_matcher.push(shown(token));
    std::optional<Ending> ending;
    if (const auto matched = choice.stop_matcher.matched())
        ending = Ending{FinishReason::stop, p.stop[*matched]};
    else if (stops)
        ending = Ending{FinishReason::stop, token};
    else if (n_prompt + choice.n_generated >= max_tokens)
        ending = Ending{FinishReason::length, {}};
    if (ending) delta.text += choice.stop_matcher.finish();
    return ending;
}

Event ActiveRequest::finish_event(int index, const Ending &ending, double now_s) const {
    const Choice &choice = choices[static_cast<size_t>(index)];
    Event finish = event(EventKind::finish, index);
    finish.finish_reason = ending.reason;
    finish.stop_reason = ending.stop_reason;
    finish.n_prompt_tokens = n_prompt_tokens();
    finish.n_cached_tokens = n_cached;
    finish.n_host_tokens = n_from_host;
    finish.n_disk_tokens = n_from_disk;
    finish.n_generated_tokens = choice.n_generated;
    finish.n_drafted_tokens = choice.n_drafted;
    finish.n_accepted_tokens = choice.n_accepted;
    const double admitted = admitted_s.value_or(now_s);
    const double first_token = choice.n_generated > 0 ? choice.first_token_s : now_s;
    finish.timings = {admitted - submitted_s, first_token - admitted, now_s - first_token};
    return finish;
}

} // namespace quire
