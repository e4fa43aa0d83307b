#include "engine/event_queue.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <tuple>
#include <unistd.h>
#include <utility>

#include "core/error.h"

namespace quire {

EventQueue::EventQueue() {
    int ends[2];
    if (pipe(ends) != 0) throw CapacityError("decoder", cat("a pipe must be free but there is ", std::strerror(errno)));
    std::tie(read_fd_, write_fd_) = std::pair(ends[0], ends[1]);
    for (int fd : ends) {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
}

EventQueue::~EventQueue() {
    ::close(read_fd_);
    ::close(write_fd_);
}

void EventQueue::signal() { // one byte is in the pipe at most, so writing it cannot fail for want of room
    if (std::exchange(signalled_, true)) return;
    while (write(write_fd_, "", 1) < 0 && errno == EINTR) {
    }
}

void EventQueue::push(std::vector<Event> &&events) {
    if (events.empty()) return;
    {
        std::lock_guard lock(mutex_);
        std::ranges::move(events, std::back_inserter(events_));
        signal();
    }
    arrived_.notify_one();
}

void EventQueue::close() {
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
        signal();
    }
    arrived_.notify_all();
}

std::vector<Event> EventQueue::wait(double timeout_s) {
    std::unique_lock lock(mutex_);
    const std::chrono::duration<double> timeout(std::clamp(timeout_s, 0.0, 1e6));
    arrived_.wait_for(lock, timeout, [this] { return !events_.empty() || closed_; });
    if (signalled_ && !closed_) {
        char byte;
        while (read(read_fd_, &byte, 1) < 0 && errno == EINTR) {
        }
        signalled_ = false;
    }
    return std::exchange(events_, {});
}

} // namespace quire
