#include "engine/decoding/event_queue.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace quire {

int EventQueue::fd() {
    std::lock_guard lock(mutex_);
    if (!signal_) signal_.emplace();
    if (!events_.empty() || closed_) signal_->raise();
    return signal_->fd();
}

void EventQueue::push(std::vector<Event> &&events) {
    if (events.empty()) return;
    bool wakes;
    {
        std::lock_guard lock(mutex_);
        for (const Event &event : events) urgent_ = urgent_ || event.kind != EventKind::delta;
        std::ranges::move(events, std::back_inserter(events_));
        wakes = urgent_ || !gathering_;
        if (signal_) signal_->raise();
    }
    if (wakes) arrived_.notify_one();
}

void EventQueue::close() {
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
        if (signal_) signal_->raise();
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
    if (signal_ && !closed_) signal_->lower();
    return std::exchange(events_, {});
}

} // namespace quire
