// Token masks of grammars: the decoder requests them, other threads compute them meanwhile.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/decoding/request.h"
#include "engine/sampling/token_mask.h"

namespace quire {

// A mask to be computed: for a choice's generated token number `position`.
struct MaskJob {
    RequestId request{};
    int choice = 0;
    int64_t position = 0;
    // New tokens generated before it.  A receiver that was told others from position - tokens.size() on forgets
    // those.
    std::vector<int32_t> tokens;
    int64_t n_drafted = 0; // the last of those, which may turn out to be others
};

// Knowledge about a choice's next tokens before they are drawn.
struct Outlook {
    std::vector<int32_t> forced;           // the masks allow nothing else
    std::shared_ptr<const TokenMask> mask; // for the token behind those; none: not there yet
};

// Thread-safe; the decoder's side waits only where it says how long.  Invariant: a choice has at most one job, which
// nobody has taken yet or one thread works on.  So jobs may be taken by several threads, and the masks of a choice
// still come in order.  A mask may come with tokens that are forced before it: their own masks, of one token each,
// are not handed over. Once the mask of the next token is there, a job goes on along the draft, so that the masks of
// all rows of a draft are there when its step is done.
class MaskExchange {
  public:
    explicit MaskExchange(int32_t n_vocab) : n_vocab_(n_vocab) {}

    // The decoder's side.
    void open(RequestId request, int n_choices); // and requests the first mask of each
    void forget(RequestId request);
    // Tells that this token was generated before `position`, and requests the mask of `position`.
    void ask(RequestId request, int choice, int64_t position, int32_t token);
    // Tells that `position` tokens are generated again, fewer than before, and requests the next mask.
    void rewind(RequestId request, int choice, int64_t position);
    // Tells that the next generated tokens may be these, and prefetches the masks along them.
    void prefetch(RequestId request, int choice, std::span<const int32_t> draft);
    // Null if not ready yet; provide() then wakes this choice.  InternalError for a mask that was not requested.
    std::shared_ptr<const TokenMask> take(RequestId request, int choice, int64_t position);
    Outlook outlook(RequestId request, int choice);
    // Waits until the mask of a choice's next token is there, at most until `end` of the steady clock.
    void wait_provided(RequestId request, int choice, std::chrono::steady_clock::time_point end);
    // Recent means over masks of next tokens: forced tokens that came with one, and seconds from request to answer.
    double n_forced();
    double seconds();

    // For the threads that compute.  None after timeout_s seconds, and at once after close().
    std::optional<MaskJob> wait(double timeout_s);
    struct Provided {
        bool was_waited_for = false; // by the decoder
        std::optional<int32_t> next; // the job goes on with the mask behind this token; none: it is done
    };
    // A no-op for a request that has ended.  ShapeError for a mask of another size, RequestError for one that was not
    // requested.
    // The tokens from `position` on are `forced`, and the mask is for the token after them.
    Provided provide(RequestId request, int choice, int64_t position, std::vector<uint32_t> words,
                     std::span<const int32_t> forced = {});
    // Tells that there is no mask for the drafted tokens of a job.  If they are drawn, it is requested again.
    void decline(RequestId request, int choice);
    void close();

  private:
    using Clock = std::chrono::steady_clock;
    // masks[i] is of token position + i, where ahead[0, i) come before it; none where it allows ahead[i] alone.  A
    // job, where there is one, is about masks[ahead.size()], unless it is `outdated`; without a job that mask is there.
    struct Slot {
        int64_t position = 0;
        std::vector<int32_t> untold; // the last tokens before `position`, which no job has told
        std::deque<int32_t> ahead;
        std::deque<std::shared_ptr<const TokenMask>> masks;
        std::deque<int32_t> draft; // from `position` on
        enum class Job { none, queued, taken, outdated } job = Job::none;
        Clock::time_point asked_at;
        bool waited_for = false;
    };
    using Place = std::pair<RequestId, int>;

    Slot &slot(RequestId request, int choice) { return slots_.at(request)[static_cast<size_t>(choice)]; }
    Slot *find(RequestId request, int choice); // none: the request has ended
    void enqueue(Place place, Slot &slot);
    void restart(Place place, Slot &slot);
    static bool cut_to_draft(Slot &slot);
    static bool extend(Slot &slot);

    const int32_t n_vocab_;
    std::mutex mutex_;
    std::condition_variable arrived_, provided_;
    double n_forced_ = 0.5, seconds_ = 0; // means of the last answers
    std::deque<Place> jobs_;
    std::unordered_map<RequestId, std::vector<Slot>> slots_;
    bool closed_ = false;
};

// Opens a request in an exchange; the destructor closes it.
class MaskLease {
  public:
    MaskLease(std::shared_ptr<MaskExchange> exchange, RequestId request, int n_choices)
        : exchange_(std::move(exchange)), request_(request) {
        exchange_->open(request, n_choices);
    }
    ~MaskLease() { exchange_->forget(request_); }
    MaskLease(const MaskLease &) = delete;
    MaskLease &operator=(const MaskLease &) = delete;

    std::shared_ptr<const TokenMask> take(int choice, int64_t position) {
        return exchange_->take(request_, choice, position);
    }
    Outlook outlook(int choice) { return exchange_->outlook(request_, choice); }
    void wait_provided(int choice, std::chrono::steady_clock::time_point end) {
        exchange_->wait_provided(request_, choice, end);
    }
    double n_forced() { return exchange_->n_forced(); }
    double seconds() { return exchange_->seconds(); }
    void ask(int choice, int64_t position, int32_t after) { exchange_->ask(request_, choice, position, after); }
    void rewind(int choice, int64_t position) { exchange_->rewind(request_, choice, position); }
    void prefetch(int choice, std::span<const int32_t> draft) { exchange_->prefetch(request_, choice, draft); }

  private:
    const std::shared_ptr<MaskExchange> exchange_;
    const RequestId request_;
};

} // namespace quire
