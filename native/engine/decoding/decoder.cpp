#include "engine/decoding/decoder.h"

#include <algorithm>
#include <future>
#include <utility>

#include "core/error.h"

namespace quire {

void Inbox::push(Command command) {
    {
        std::lock_guard lock(mutex_);
        if (closed_) throw RequestError("decoder", "the decoder is closed");
        commands_.push_back(std::move(command));
    }
    arrived_.notify_one();
}

void Inbox::close() {
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
    }
    arrived_.notify_one();
}

bool Inbox::closed() {
    std::lock_guard lock(mutex_);
    return closed_;
}

std::optional<std::vector<Command>> Inbox::take(Mode mode) {
    std::unique_lock lock(mutex_);
    if (mode == Mode::wait) arrived_.wait(lock, [this] { return !commands_.empty() || closed_; });
    if (closed_ && commands_.empty()) return std::nullopt;
    return std::exchange(commands_, {});
}

Decoder::Decoder(std::shared_ptr<Executor> executor, std::shared_ptr<const VocabInfo> vocab,
                 const DecoderConfig &config, std::vector<std::shared_ptr<Drafter>> drafters)
    : executor_(std::move(executor)), vocab_(std::move(vocab)), n_ctx_(config.n_ctx),
      decoder_start_(config.decoder_start), speculation_(config.speculation),
      identity_(tier_identity(config.tiers.model, executor_->cache())), loop_(executor_, config, std::move(drafters)),
      masks_(std::make_shared<MaskExchange>(vocab_->n_vocab)) {
    vocab_->validate();
    if (vocab_->n_vocab != executor_->n_vocab())
        throw ShapeError("decoder",
                         cat("n_vocab is ", vocab_->n_vocab, ": expected the model's ", executor_->n_vocab()));
    if (decoder_start_.has_value() != executor_->cache().source_group().has_value())
        throw RequestError("decoder",
                           "decoder_start does not match the model: exactly models that encode their prompts need it");
    if (decoder_start_ && !vocab_->contains(*decoder_start_))
        throw RequestError("decoder",
                           cat("decoder_start is ", *decoder_start_, ": expected an id less than ", vocab_->n_vocab));
    loop_.speculator().set(speculation_); // its name holds
    loop_.speculator().require_features(executor_->n_features());
    stats_ = loop_.stats();
    if (loop_.tiers() != nullptr) loop_.tiers()->on_arrival([this] { push(ArrivalCommand{}); });
    thread_ = std::thread([this] { run(); });
}

void Decoder::require_task(const Request &request) const {
    if (decoder_start_ && request.task != Task::generate)
        throw UnsupportedError("request",
                               "embeddings and logits of prompts are unsupported for a model that encodes its prompts");
    if (decoder_start_ && request.params && request.params->prompt_logprobs)
        throw UnsupportedError("request", "prompt_logprobs are unsupported for a model that encodes its prompts");
    const bool reads_taps = request.pooling == Pooling::taps;
    if (reads_taps && executor_->tapped_layers().empty())
        throw UnsupportedError("request", "the model was opened without taps of its layers");
    if (request.task == Task::embedding && !reads_taps && executor_->n_hidden() == 0)
        throw UnsupportedError("request", "the model does not expose hidden states, which embeddings need");
    if (request.second_text && !executor_->reads_token_types())
        throw UnsupportedError("request", "second_text is unsupported: the model has no token types");
}

// A sound in place of the source text: one span of rows.
void Decoder::require_sound(const Request &request) const {
    const auto n_read = static_cast<size_t>(executor_->n_source_features());
    if (!request.media || request.media->spans.size() != 1)
        throw RequestError("request", "the model reads a sound: the request has none, or several");
    const PromptMedia &media = *request.media;
    if (media.width != n_read || media.spans.front().n_rows < 1 || !media.axes.empty())
        throw ShapeError("request", cat("rows of the sound are [", media.spans.front().n_rows, ", ", media.width,
                                        "]: expected ", n_read, " values in each"));
}

void Decoder::require_media(const Request &request) const {
    if (executor_->n_source_features() > 0) return require_sound(request);
    const auto n_beside = static_cast<size_t>(std::max(executor_->n_features_read(), 1)) - 1;
    const size_t n_steering = request.steering.size();
    if (n_steering > n_beside)
        throw ShapeError("request", cat("steering has ", n_steering, " numbers: the model reads at most ", n_beside));
    if (!request.media) return;
    const auto n_read = static_cast<size_t>(executor_->n_features_read()) - n_steering;
    if (n_read < 2 || decoder_start_) throw UnsupportedError("request", "the model reads no images and no sounds");
    const auto n_prompt = static_cast<int64_t>(request.token_ids.size());
    const PromptMedia &media = *request.media;
    if (media.width != n_read - 1)
        throw ShapeError("request", cat("rows of media have ", media.width, " values: expected ", n_read - 1));
    if (!media.axes.empty() && media.axes.size() != 3 * request.token_ids.size())
        throw ShapeError("request",
                         cat("places of media have ", media.axes.size(), " values: expected ", 3 * n_prompt));
    int64_t end = 0;
    for (const MediaSpan &span : media.spans) {
        if (span.begin < end || span.n_rows < 1 || span.n_rows > n_prompt - span.begin)
            throw RequestError("request", cat("media of ", span.n_rows, " rows at position ", span.begin,
                                              " overlaps other media or the end of the prompt"));
        end = span.begin + span.n_rows;
    }
}

RequestId Decoder::submit(Request request) {
    require_task(request);
    require_media(request);
    const DrafterSet drafters = drafters_for(request);
    auto active = std::make_unique<ActiveRequest>(std::move(request), vocab_, n_ctx_, decoder_start_);
    const LogitRows rows = active->wants_prompt_rows() ? LogitRows::every : LogitRows::last;
    loop_.scheduler().require_fit(active->n_prompt, active->max_tokens, rows, active->n_source);
    if (active->request.media && !active->hears()) loop_.scheduler().require_whole_media(*active->request.media, rows);
    const RequestId id{++n_submitted_};
    active->id = id;
    active->drafters = drafters;
    active->submitted_s = now_s();
    if (active->request.constraint == Constraint::grammar)
        active->masks = std::make_unique<MaskLease>(masks_, id, active->n_choices());
    inbox_.push(std::move(active));
    return id;
}

// A prediction is looked up unless the request says otherwise.
DrafterSet Decoder::drafters_for(const Request &request) const {
    const Speculator &speculator = loop_.speculator();
    DrafterSet drafters = speculator.set(request.speculation.empty() ? speculation_ : request.speculation);
    if (request.speculation.empty() && !request.prediction.empty() && speculator.has("lookup"))
        drafters |= speculator.set("lookup");
    return request.constraint == Constraint::grammar ? drafters : drafters & ~speculator.certain();
}

void Decoder::push(Command command) {
    try {
        inbox_.push(std::move(command));
    } catch (const RequestError &) { // close() cancels everything
    }
}

void Decoder::cancel(RequestId request) { push(CancelCommand{request}); }
void Decoder::pause(RequestId request) { push(PauseCommand{request, true}); }
void Decoder::resume(RequestId request) { push(PauseCommand{request, false}); }

PinnedPrefixes::Pinned Decoder::pin(Request request) {
    require_task(request);
    require_media(request);
    const auto text = std::make_shared<ActiveRequest>(std::move(request), vocab_, n_ctx_, decoder_start_);
    return ask([text](DecoderLoop &loop) { return loop.pin(*text); });
}

void Decoder::unpin(PinId id) {
    push(LoopCommand{[id](DecoderLoop &loop) { loop.unpin(id); }});
}

void Decoder::freeze(bool frozen) {
    ask([frozen](DecoderLoop &loop) { loop.freeze(frozen); });
}

void Decoder::forget_prefixes() {
    ask([](DecoderLoop &loop) { loop.forget_prefixes(); });
}

void Decoder::provide_logits(RequestId request, int choice, std::vector<float> logits) {
    if (logits.size() != static_cast<size_t>(vocab_->n_vocab))
        throw ShapeError("decoder", cat("logits have ", logits.size(), " values: expected ", vocab_->n_vocab));
    inbox_.push(LogitsCommand{request, choice, std::move(logits)});
}

std::optional<int32_t> Decoder::provide_mask(RequestId request, int choice, int64_t position,
                                             std::vector<uint32_t> words, std::span<const int32_t> forced) {
    const MaskExchange::Provided provided = masks_->provide(request, choice, position, std::move(words), forced);
    if (provided.was_waited_for) push(MaskCommand{request, choice});
    return provided.next;
}

DecoderStats Decoder::stats() const {
    std::lock_guard lock(stats_mutex_);
    DecoderStats stats = stats_;
    stats.n_steps = n_steps();
    if (loop_.tiers() != nullptr) stats.tiers = loop_.tiers()->stats();
    return stats;
}

void Decoder::close() {
    inbox_.close();
    masks_->close();
    std::call_once(joined_, [this] {
        thread_.join();
        loop_.close_drafters();
        if (loop_.tiers() != nullptr) loop_.tiers()->close();
    });
}

void Decoder::apply(Command &command) {
    if (auto *request = std::get_if<std::unique_ptr<ActiveRequest>>(&command))
        loop_.start(std::move(*request));
    else if (const auto *cancel = std::get_if<CancelCommand>(&command))
        loop_.cancel(cancel->request);
    else if (const auto *pause = std::get_if<PauseCommand>(&command))
        loop_.pause(pause->request, pause->paused);
    else if (auto *provided = std::get_if<LogitsCommand>(&command))
        loop_.provide_logits(provided->request, provided->choice, provided->logits);
    else if (const auto *mask = std::get_if<MaskCommand>(&command))
        loop_.resume(mask->request, mask->choice);
    else if (const auto *call = std::get_if<LoopCommand>(&command))
        call->work(loop_);
}

void Decoder::publish() {
    DecoderStats stats = loop_.stats();
    n_steps_.store(stats.n_steps, std::memory_order_relaxed);
    {
        std::lock_guard lock(stats_mutex_);
        std::swap(stats_, stats);
    }
    outbox_.push(loop_.take_events());
}

void Decoder::run() {
    Inbox::Mode mode = Inbox::Mode::wait;
    while (auto commands = inbox_.take(mode)) {
        try {
            for (Command &command : *commands) apply(command);
            mode = !inbox_.closed() && loop_.step() ? Inbox::Mode::poll : Inbox::Mode::wait;
        } catch (const std::exception &error) { // the loop itself failed: no request can go on
            loop_.fail_all(ErrorKind::internal, error.what());
            mode = Inbox::Mode::wait;
        }
        const bool is_fetching =
            std::ranges::any_of(loop_.scheduler().waiting(), [](const Sequence *s) { return s->fetch != nullptr; });
        if (mode == Inbox::Mode::wait && !is_fetching) loop_.check();
        publish();
    }
    loop_.cancel_all();
    loop_.keep_prefixes();
    loop_.check();
    publish();
    outbox_.close();
}

} // namespace quire
