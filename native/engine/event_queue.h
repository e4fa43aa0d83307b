// The way out of the decoder: events of whole steps, with a condition variable for threads and a file descriptor for
// event loops.
#pragma once

#include <condition_variable>
#include <mutex>
#include <vector>

#include "engine/request.h"

namespace quire {

// Many producers, one consumer.  Invariant: the file descriptor is readable if and only if events wait or the queue is
// closed.
class EventQueue {
  public:
    EventQueue();
    ~EventQueue();
    EventQueue(const EventQueue &) = delete;
    EventQueue &operator=(const EventQueue &) = delete;

    void push(std::vector<Event> &&events); // wakes the consumer once
    void close();                           // nothing more comes
    // All events so far; waits for some at most timeout_s seconds.  Empty at the end of that, or of the queue.
    std::vector<Event> wait(double timeout_s);
    int fd() const { return read_fd_; }

  private:
    void signal();
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::vector<Event> events_;
    bool closed_ = false;
    bool signalled_ = false;
    int read_fd_ = -1, write_fd_ = -1;
};

} // namespace quire
