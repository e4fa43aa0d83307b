#include "engine/grammar_mask.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"

namespace quire {

void MaskExchange::open(RequestId request, int n_choices) {
    {
        std::lock_guard lock(mutex_);
        std::vector<Slot> slots(static_cast<size_t>(n_choices));
        for (int choice = 0; choice < n_choices; ++choice) {
            slots[static_cast<size_t>(choice)].asked = 0;
            jobs_.push_back({request, choice, 0, std::nullopt});
        }
        slots_.emplace(request, std::move(slots));
    }
    arrived_.notify_all();
}

void MaskExchange::forget(RequestId request) {
    std::lock_guard lock(mutex_);
    slots_.erase(request);
    std::erase_if(jobs_, [&](const MaskJob &job) { return job.request == request; });
}

void MaskExchange::ask(const MaskJob &job) {
    {
        std::lock_guard lock(mutex_);
        Slot &slot = slots_.at(job.request)[static_cast<size_t>(job.choice)];
        slot = {job.position, std::nullopt, false};
        jobs_.push_back(job);
    }
    arrived_.notify_one();
}

std::optional<TokenMask> MaskExchange::take(RequestId request, int choice, int64_t position) {
    std::lock_guard lock(mutex_);
    Slot &slot = slots_.at(request)[static_cast<size_t>(choice)];
    if (slot.asked != position)
        throw InternalError("grammar_mask",
                            cat("the mask of token ", position, " must have been asked for but was not"));
    slot.waited_for = !slot.mask;
    return std::exchange(slot.mask, std::nullopt);
}

std::optional<MaskJob> MaskExchange::wait(double timeout_s) {
    std::unique_lock lock(mutex_);
    const std::chrono::duration<double> timeout(std::clamp(timeout_s, 0.0, 1e6));
    arrived_.wait_for(lock, timeout, [this] { return !jobs_.empty() || closed_; });
    if (closed_ || jobs_.empty()) return std::nullopt;
    const MaskJob job = jobs_.front();
    jobs_.pop_front();
    return job;
}

bool MaskExchange::provide(RequestId request, int choice, int64_t position, std::vector<uint32_t> words) {
    TokenMask mask(std::move(words), n_vocab_);
    std::lock_guard lock(mutex_);
    const auto found = slots_.find(request);
    if (found == slots_.end()) return false;
    if (choice < 0 || static_cast<size_t>(choice) >= found->second.size() ||
        found->second[static_cast<size_t>(choice)].asked != position)
        throw RequestError("grammar_mask", cat("a mask must have been asked for but that of token ", position,
                                               " of choice ", choice, " was not"));
    Slot &slot = found->second[static_cast<size_t>(choice)];
    slot.mask = std::move(mask);
    return std::exchange(slot.waited_for, false);
}

void MaskExchange::close() {
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
    }
    arrived_.notify_all();
}

} // namespace quire
