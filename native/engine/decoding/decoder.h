// The native thread that owns a model.  All others talk to it through an inbox and an outbox; it knows nothing of
// Python.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "engine/decoding/decoder_loop.h"
#include "engine/decoding/event_queue.h"

namespace quire {

// Commands to the thread.
struct CancelCommand {
    RequestId request;
};
struct PauseCommand { // or the end of a pause
    RequestId request;
    bool paused;
};
struct LogitsCommand {
    RequestId request;
    int choice;
    std::vector<float> logits;
};
struct ArrivalCommand {}; // contents have arrived from the tiers below the pool
struct MaskCommand { // the mask that a choice waits for is there
    RequestId request;
    int choice;
};
struct LoopCommand { // work between two steps
    std::function<void(DecoderLoop &)> work;
};
using Command = std::variant<std::unique_ptr<ActiveRequest>, CancelCommand, PauseCommand, LogitsCommand, MaskCommand,
                             ArrivalCommand, LoopCommand>;

// The inbox.  Many producers, one consumer.
class Inbox {
  public:
    void push(Command command); // RequestError after close()
    void close();
    // Commands so far, or none once closed.  `wait`: sleeps until there are some.
    enum class Mode { poll, wait };
    std::optional<std::vector<Command>> take(Mode mode);
    bool closed();

  private:
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::vector<Command> commands_;
    bool closed_ = false;
};

// Thread-safe.  Events go to one consumer.
class Decoder {
  public:
    // Starts the thread, which then owns the drafters and asks them in their order.  ShapeError if the vocabulary is not
    // the executor's.
    Decoder(std::shared_ptr<Executor> executor, std::shared_ptr<const VocabInfo> vocab, const DecoderConfig &config,
            std::vector<std::shared_ptr<Drafter>> drafters = {});
    ~Decoder() { close(); }
    Decoder(const Decoder &) = delete;
    Decoder &operator=(const Decoder &) = delete;

    // RequestError or CapacityError for a request that can never run, and after close().
    RequestId submit(Request request);
    void cancel(RequestId request); // unknown requests have ended already
    void pause(RequestId request); // the client does not read: the request gives up its place until resume()
    void resume(RequestId request); // pause() and resume(): unknown requests have ended already
    // Keeps what the cache has of a request's prompt from being evicted, until unpin().  Waits for the current step.
    // RequestError for a request that can never run, and after close(); CapacityError beyond the budget.
    PinnedPrefixes::Pinned pin(Request request);
    void unpin(PinId id); // a no-op for unknown ones, which have given way to requests
    // No step runs from the return of freeze(true) to freeze(false); requests wait.  RequestError after close().
    void freeze(bool frozen);
    void forget_prefixes(); // no later request finds what was computed so far
    void provide_logits(RequestId request, int choice, std::vector<float> logits);
    // For the threads that compute masks: what to compute next (none: see MaskExchange), and the answer to it.
    std::optional<MaskJob> wait_mask_job(double timeout_s) { return masks_->wait(timeout_s); }
    // `forced`: tokens from `position` on; the mask is for the token after them.  The job goes on with the mask after
    // the token that is returned; none: it is done.
    std::optional<int32_t> provide_mask(RequestId request, int choice, int64_t position, std::vector<uint32_t> words,
                                        std::span<const int32_t> forced = {});
    void decline_mask(RequestId request, int choice) { masks_->decline(request, choice); }
    std::vector<Event> wait(double timeout_s, double gather_s = 0.0) { return outbox_.wait(timeout_s, gather_s); }
    int event_fd() { return outbox_.fd(); }
    int64_t n_steps() const { return n_steps_.load(std::memory_order_relaxed); }
    DecoderStats stats() const;
    int64_t n_ctx() const { return n_ctx_; }
    // Saves the longest prefix of a text that the cache has to a file, and returns its number of tokens.  `note` is kept
    // in the file.  RequestError if the cache has none; CapacityError if the disk is full.
    int64_t export_prefix(const PrefixText &text, const std::string &path, const std::string &note,
                          const std::string &model = {});
    // Loads what a file has of a text into the pool, as far as there is room, and returns the tokens that the cache has
    // now.  What the file has under other names, of another text or salt, is left out.  LoadError for a file that is
    // damaged or of another model.
    int64_t import_prefix(const PrefixText &text, const std::string &path, const std::string &model = {});
    // As Scheduler::find_missing(), for a request's prompt.  Waits for the current step.
    SequenceCache::Below find_missing(Request request, const TierKeys *held);
    // Keeps a record that a peer sent (kv/tier_record.h) in the tiers.  False: there is no room for now.  LoadError if
    // it is damaged, or of another model.
    bool keep_record(std::span<const uint8_t> record);
    std::string cache_identity() const; // the name of the entries' folder
    // Cancels every request and joins the thread; the last events can still be read.
    void close();
    bool closed() { return inbox_.closed(); }

  private:
    void run();
    void push(Command command); // a no-op after close()
    void require_prefixes() const;
    void apply(Command &command);
    template <class Work> auto ask(Work work); // its result, once the thread has done it
    DrafterSet drafters_for(const Request &request) const;
    void require_sound(const Request &request) const;
    void require_media(const Request &request) const;
    void require_task(const Request &request) const;
    void publish(); // statistics first, so that whoever sees an event sees its effect on them
    const std::shared_ptr<Executor> executor_;
    const std::shared_ptr<const VocabInfo> vocab_;
    const int64_t n_ctx_;
    const std::optional<int32_t> decoder_start_;
    const std::string speculation_;
    TierIdentity identity_for(const std::string &model) const;
    const TierIdentity identity_; // names the contents of the cache in files
    DecoderLoop loop_; // the thread's
    const std::shared_ptr<MaskExchange> masks_;
    Inbox inbox_;
    EventQueue outbox_;
    mutable std::mutex stats_mutex_;
    DecoderStats stats_;
    std::atomic<int64_t> n_steps_{0};
    std::atomic<uint64_t> n_submitted_{0};
    std::once_flag joined_;
    std::thread thread_; // last: it uses all of the above
};

template <class Work> auto Decoder::ask(Work work) {
    auto task =
        std::make_shared<std::packaged_task<std::invoke_result_t<Work, DecoderLoop &>(DecoderLoop &)>>(std::move(work));
    auto result = task->get_future();
    inbox_.push(LoopCommand{[task](DecoderLoop &loop) { (*task)(loop); }});
    return result.get();
}

} // namespace quire
