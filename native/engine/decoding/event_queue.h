// The outbox of the decoder: events of whole steps, with a condition variable for threads and a file descriptor for
// event loops.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "core/system.h"
#include "engine/decoding/request.h"

namespace quire {

// Many producers, one consumer.  Invariant: once it has been asked for, the file descriptor is readable if and only if
// events wait or the queue is closed.
class EventQueue {
  public:
    void push(std::vector<Event> &&events); // wakes the consumer at most once
    void close();                           // no more events follow
    // Returns all events so far; waits up to timeout_s seconds for some.  Empty after that, or at the end.  Less
    // than gather_s seconds after the last call it lets deltas gather: steps of a small model follow each other
    // faster than another thread can be woken.  Events of other kinds do not wait.
    std::vector<Event> wait(double timeout_s, double gather_s = 0.0);
    int fd(); // throws like WakeSignal()

  private:
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::vector<Event> events_;
    bool urgent_ = false; // there is more than deltas
    bool gathering_ = false; // the consumer sleeps until there is
    std::chrono::steady_clock::time_point last_end_{};
    bool closed_ = false;
    std::optional<WakeSignal> signal_; // once somebody asked for the descriptor
};

} // namespace quire
