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
    if (!fd_in_use_ || std::exchange(signalled_, true)) return;
    while (write(write_fd_, "", 1) < 0 && errno == EINTR) {
    }
}

int EventQueue::fd() {
    std::lock_guard lock(mutex_);
    fd_in_use_ = true;
    if (!events_.empty() || closed_) signal();
    return read_fd_;
}

void EventQueue::push(std::vector<Event> &&events) {
    if (events.empty()) return;
    bool wakes;
    {
        std::lock_guard lock(mutex_);
        for (const Event &event : events) urgent_ = urgent_ || event.kind != EventKind::delta;
        std::ranges::move(events, std::back_inserter(events_));
        wakes = urgent_ || !gathering_;
        signal();
    }
    if (wakes) arrived_.notify_one();
}

void EventQueue::close() {
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
        signal();
    }
    arrived_.notify_all();
}

std::vector<Event> EventQueue::wait(double timeout_s, double gather_s) {
    using Clock = std::chrono::steady_clock;
    auto seconds = [](double s) {
        return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::clamp(s, 0.0, 1e6)));
    };
    std::unique_lock lock(mutex_);
    const Clock::time_point end = Clock::now() + seconds(timeout_s);
    const Clock::time_point gathered = std::min(last_end_ + seconds(gather_s), end);
    gathering_ = true;
    if (gather_s > 0) arrived_.wait_until(lock, gathered, [this] { return urgent_ || closed_; });
    gathering_ = false;
    arrived_.wait_until(lock, end, [this] { return !events_.empty() || closed_; });
    urgent_ = false;
    last_end_ = Clock::now();
    if (signalled_ && !closed_) {
        char byte;
        while (read(read_fd_, &byte, 1) < 0 && errno == EINTR) {
        }
        signalled_ = false;
    }
    return std::exchange(events_, {});
}

} // namespace quire
