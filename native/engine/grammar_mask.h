// Token masks of grammars: the decoder says which it will need, somebody else computes them meanwhile.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
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

// Thread-safe; the decoder's side never waits.  Invariant: a choice has at most one mask on its way, as a job nobody has
// taken yet, as work of the thread that took it, or as a mask that was not drawn from yet.  So jobs may be taken by
// several threads and the masks of a choice still come in order.
class MaskExchange {
  public:
    explicit MaskExchange(int32_t n_vocab) : n_vocab_(n_vocab) {}

    // The decoder's side.
    void open(RequestId request, int n_choices); // and asks for the first mask of each
    void forget(RequestId request);
    void ask(const MaskJob &job);
    // None: not there yet, and provide() will say that it is waited for.  InternalError for a mask nobody asked for.
    std::optional<TokenMask> take(RequestId request, int choice, int64_t position);

    // The side that computes.  None after timeout_s seconds, and at once after close().
    std::optional<MaskJob> wait(double timeout_s);
    // Whether the decoder waits for it; a request that has ended takes nothing.  ShapeError for a mask of another size,
    // RequestError for one that was not asked for.
    bool provide(RequestId request, int choice, int64_t position, std::vector<uint32_t> words);
    void close();

  private:
    struct Slot {
        std::optional<int64_t> asked; // position
        std::optional<TokenMask> mask;
        bool waited_for = false;
    };
    const int32_t n_vocab_;
    std::mutex mutex_;
    std::condition_variable arrived_;
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

    std::optional<TokenMask> take(int choice, int64_t position) { return exchange_->take(request_, choice, position); }
    void ask(int choice, int64_t position, int32_t after) { exchange_->ask({request_, choice, position, after}); }

  private:
    const std::shared_ptr<MaskExchange> exchange_;
    const RequestId request_;
};

} // namespace quire
