// The way out of the decoder: events of whole steps, with a condition variable for threads and a file descriptor for
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
    void close();                           // nothing more comes
    // All events so far; waits for some at most timeout_s seconds.  Empty at the end of that, or of the queue.  Less than
    // gather_s seconds after the last call's end it lets deltas gather: steps of a small model follow each other faster
    // than another thread can be woken.  Events of other kinds do not wait.
    std::vector<Event> wait(double timeout_s, double gather_s = 0.0);
    int fd(); // what WakeSignal() throws

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
