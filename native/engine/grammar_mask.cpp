#include "engine/grammar_mask.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/error.h"

namespace quire {
namespace {

constexpr double rate_weight = 0.05; // of an answer in the rate of forced tokens

} // namespace

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
        if (!slot.forced.empty()) { // who computes masks is ahead already
            if (job.token != slot.forced.front())
                throw InternalError("grammar_mask", cat("token ", slot.forced.front(),
                                                        " must be drawn, which is forced, "
                                                        "but is not"));
            slot.forced.pop_front();
            slot.asked = job.position;
            return;
        }
        slot = {job.position, {}, nullptr, false};
        jobs_.push_back(job);
    }
    arrived_.notify_one();
}

std::shared_ptr<const TokenMask> MaskExchange::take(RequestId request, int choice, int64_t position) {
    std::lock_guard lock(mutex_);
    Slot &slot = slots_.at(request)[static_cast<size_t>(choice)];
    if (slot.asked != position)
        throw InternalError("grammar_mask",
                            cat("the mask of token ", position, " must have been asked for but was not"));
    slot.waited_for = !slot.mask;
    if (!slot.forced.empty()) return std::make_shared<const TokenMask>(TokenMask::only(slot.forced.front(), n_vocab_));
    return std::exchange(slot.mask, nullptr);
}

Outlook MaskExchange::outlook(RequestId request, int choice) {
    std::lock_guard lock(mutex_);
    const Slot &slot = slots_.at(request)[static_cast<size_t>(choice)];
    return {{slot.forced.begin(), slot.forced.end()}, slot.mask};
}

void MaskExchange::wait_provided(RequestId request, int choice, std::chrono::steady_clock::time_point end) {
    std::unique_lock lock(mutex_);
    const auto is_there = [&] {
        const auto found = slots_.find(request);
        return closed_ || found == slots_.end() || found->second[static_cast<size_t>(choice)].mask;
    };
    provided_.wait_until(lock, end, is_there);
}

double MaskExchange::forced_rate() {
    std::lock_guard lock(mutex_);
    return forced_rate_;
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

bool MaskExchange::provide(RequestId request, int choice, int64_t position, std::vector<uint32_t> words,
                           std::span<const int32_t> forced) {
    auto mask = std::make_shared<const TokenMask>(std::move(words), n_vocab_);
    for (int32_t token : forced)
        if (token < 0 || token >= n_vocab_)
            throw RequestError("grammar_mask",
                               cat("forced tokens must be ids below ", n_vocab_, " but one is ", token));
    std::lock_guard lock(mutex_);
    const auto found = slots_.find(request);
    if (found == slots_.end()) return false;
    if (choice < 0 || static_cast<size_t>(choice) >= found->second.size() ||
        found->second[static_cast<size_t>(choice)].asked != position)
        throw RequestError("grammar_mask", cat("a mask must have been asked for but that of token ", position,
                                               " of choice ", choice, " was not"));
    Slot &slot = found->second[static_cast<size_t>(choice)];
    if (slot.mask) throw RequestError("grammar_mask", "a mask must come once but came again");
    slot.mask = std::move(mask);
    slot.forced.assign(forced.begin(), forced.end());
    forced_rate_ += rate_weight * ((forced.empty() ? 0.0 : 1.0) - forced_rate_);
    provided_.notify_all();
    return std::exchange(slot.waited_for, false);
}

void MaskExchange::close() {
    {
        std::lock_guard lock(mutex_);
        closed_ = true;
    }
    arrived_.notify_all();
    provided_.notify_all();
}

} // namespace quire
