// Token masks of grammars: the decoder says which it will need, somebody else computes them meanwhile.
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
#include <vector>

#include "engine/request.h"
#include "engine/token_mask.h"

namespace quire {

// What is to be computed: the mask of a choice's generated token number `position`, after `token` was generated (none
// before the first).
struct MaskJob {
    RequestId request{};
    int choice = 0;
    int64_t position = 0;
    std::optional<int32_t> token;
};

// What is known of a choice's next tokens before they are drawn.
struct Outlook {
    std::vector<int32_t> forced;           // the masks allow nothing else
    std::shared_ptr<const TokenMask> mask; // of the token behind those; none: not there yet
};

// Thread-safe; the decoder's side waits only where it says how long.  Invariant: a choice has at most one mask on its way,
// as a job nobody has taken yet, as work of the thread that took it, or as a mask that was not drawn from yet.  So jobs may
// be taken by several threads and the masks of a choice still come in order.  A mask may come with tokens that are forced
// before it: their own masks, of one token each, are not handed over.
class MaskExchange {
  public:
    explicit MaskExchange(int32_t n_vocab) : n_vocab_(n_vocab) {}

    // The decoder's side.
    void open(RequestId request, int n_choices); // and asks for the first mask of each
    void forget(RequestId request);
    void ask(const MaskJob &job);
    // None: not there yet, and provide() will say that it is waited for.  InternalError for a mask nobody asked for.
    std::shared_ptr<const TokenMask> take(RequestId request, int choice, int64_t position);
    Outlook outlook(RequestId request, int choice);
    // Waits until the mask that a choice was asked for is there, not beyond a time of the steady clock.
    void wait_provided(RequestId request, int choice, std::chrono::steady_clock::time_point end);
    // How often masks came with forced tokens lately.
    double forced_rate();

    // The side that computes.  None after timeout_s seconds, and at once after close().
    std::optional<MaskJob> wait(double timeout_s);
    // Whether the decoder waits for it; a request that has ended takes nothing.  ShapeError for a mask of another size,
    // RequestError for one that was not asked for.
    // The tokens from `position` on are `forced`, and the mask is of the token behind them.
    bool provide(RequestId request, int choice, int64_t position, std::vector<uint32_t> words,
                 std::span<const int32_t> forced = {});
    void close();

  private:
    struct Slot {
        std::optional<int64_t> asked; // position
        std::deque<int32_t> forced;   // from there on
        std::shared_ptr<const TokenMask> mask;
        bool waited_for = false;
    };
    const int32_t n_vocab_;
    std::mutex mutex_;
    std::condition_variable arrived_, provided_;
    double forced_rate_ = 0.3; // a mean of the last answers
    std::deque<MaskJob> jobs_;
    std::unordered_map<RequestId, std::vector<Slot>> slots_;
    bool closed_ = false;
};

// A request's part of an exchange, given back with it.
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
    double forced_rate() { return exchange_->forced_rate(); }
    void ask(int choice, int64_t position, int32_t after) { exchange_->ask({request_, choice, position, after}); }

  private:
    const std::shared_ptr<MaskExchange> exchange_;
    const RequestId request_;
};

} // namespace quire
