#include "engine/decoding/grammar_mask.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace quire {
namespace {

constexpr double mean_weight = 0.05; // weight of an answer in the means
// An answer that took so many times the mean, and a little, counts as that: the machine did something else.
constexpr double outlier_ratio = 3.0, least_outlier_s = 50e-6;

} // namespace

void MaskExchange::open(RequestId request, int n_choices) {
    std::lock_guard lock(mutex_);
    auto &slots = slots_[request];
    slots.resize(static_cast<size_t>(n_choices));
    for (int choice = 0; choice < n_choices; ++choice) {
        slots[static_cast<size_t>(choice)].asked_at = Clock::now();
        enqueue({request, choice}, slots[static_cast<size_t>(choice)]);
    }
}

void MaskExchange::forget(RequestId request) {
    std::lock_guard lock(mutex_);
    slots_.erase(request);
    std::erase_if(jobs_, [&](const Place &place) { return place.first == request; });
}

// Masks that a sequence waits for come before those it may need later.
void MaskExchange::enqueue(Place place, Slot &slot) {
    std::erase(jobs_, place);
    slot.job = Slot::Job::queued;
    const auto is_urgent = [&](const Place &other) { return this->slot(other.first, other.second).masks.empty(); };
    const auto before = slot.masks.empty() ? std::ranges::find_if_not(jobs_, is_urgent) : jobs_.end();
    jobs_.insert(before, place);
    arrived_.notify_one();
}

// The masks along `ahead` stay as far as the draft has them.  Forced tokens stay in any case.
bool MaskExchange::cut_to_draft(Slot &slot) {
    const size_t n = std::min(slot.ahead.size(), slot.draft.size());
    size_t i = 0;
    while (i < n && (!slot.masks[i] || slot.ahead[i] == slot.draft[i])) ++i;
    if (i == n) return false;
    slot.ahead.resize(i);
    slot.masks.resize(i + 1);
    return true;
}

// Take one more token of the draft to what is computed ahead, if there is one and its mask allows it.
bool MaskExchange::extend(Slot &slot) {
    const size_t n = slot.ahead.size();
    if (n >= slot.draft.size() || !std::equal(slot.ahead.begin(), slot.ahead.end(), slot.draft.begin())) return false;
    if (!slot.masks.back() || !slot.masks.back()->allows(slot.draft[n])) return false;
    slot.ahead.push_back(slot.draft[n]);
    return true;
}

void MaskExchange::ask(RequestId request, int choice, int64_t position, int32_t token) {
    std::lock_guard lock(mutex_);
    Slot &slot = this->slot(request, choice);
    if (!slot.masks.empty() && !slot.masks.front() && token != slot.ahead.front())
        throw InternalError("grammar_mask",
                            cat("token ", token, " was drawn instead of the forced token ", slot.ahead.front()));
    slot.position = position;
    slot.untold.push_back(token);
    if (!slot.draft.empty() && slot.draft.front() == token)
        slot.draft.pop_front();
    else
        slot.draft.clear();
    if (!slot.ahead.empty() && slot.ahead.front() == token) { // the masks are computed ahead already
        slot.ahead.pop_front();
        slot.masks.pop_front();
        if (slot.masks.empty()) slot.asked_at = Clock::now();
        if (slot.masks.empty() && slot.job == Slot::Job::queued) enqueue({request, choice}, slot); // before others now
        return;
    }
    restart({request, choice}, slot);
}

// Nothing that was computed ahead holds: the mask of `position` is requested.
void MaskExchange::restart(Place place, Slot &slot) {
    slot.ahead.clear();
    slot.masks.clear();
    slot.asked_at = Clock::now();
    if (slot.job == Slot::Job::taken)
        slot.job = Slot::Job::outdated;
    else if (slot.job != Slot::Job::outdated)
        enqueue(place, slot);
}

void MaskExchange::rewind(RequestId request, int choice, int64_t position) {
    std::lock_guard lock(mutex_);
    Slot &slot = this->slot(request, choice);
    const int64_t n_told = slot.position - static_cast<int64_t>(slot.untold.size());
    if (position < slot.position) slot.untold.resize(static_cast<size_t>(std::max<int64_t>(0, position - n_told)));
    slot.position = position;
    slot.draft.clear();
    restart({request, choice}, slot);
}

void MaskExchange::prefetch(RequestId request, int choice, std::span<const int32_t> draft) {
    std::lock_guard lock(mutex_);
    Slot &slot = this->slot(request, choice);
    slot.draft.assign(draft.begin(), draft.end());
    if (slot.job != Slot::Job::none) return; // its answer goes on with this
    cut_to_draft(slot);
    if (extend(slot)) enqueue({request, choice}, slot);
}

std::shared_ptr<const TokenMask> MaskExchange::take(RequestId request, int choice, int64_t position) {
    std::lock_guard lock(mutex_);
    Slot &slot = this->slot(request, choice);
    if (slot.position != position)
        throw InternalError("grammar_mask", cat("the mask of token ", position, " was not requested"));
    slot.waited_for = slot.masks.empty();
    if (slot.waited_for) return nullptr;
    if (!slot.masks.front()) return std::make_shared<const TokenMask>(TokenMask::only(slot.ahead.front(), n_vocab_));
    return slot.masks.front();
}

Outlook MaskExchange::outlook(RequestId request, int choice) {
    std::lock_guard lock(mutex_);
    const Slot &slot = this->slot(request, choice);
    size_t n = 0;
    while (n < slot.masks.size() && !slot.masks[n]) ++n;
    return {{slot.ahead.begin(), slot.ahead.begin() + static_cast<ptrdiff_t>(n)},
            n < slot.masks.size() ? slot.masks[n] : nullptr};
}

void MaskExchange::wait_provided(RequestId request, int choice, Clock::time_point end) {
    std::unique_lock lock(mutex_);
    provided_.wait_until(lock, end, [&] {
        const Slot *slot = closed_ ? nullptr : find(request, choice);
        return slot == nullptr || !slot->masks.empty();
    });
}

double MaskExchange::n_forced() {
    std::lock_guard lock(mutex_);
    return n_forced_;
}

double MaskExchange::seconds() {
    std::lock_guard lock(mutex_);
    return seconds_;
}

std::optional<MaskJob> MaskExchange::wait(double timeout_s) {
    std::unique_lock lock(mutex_);
    const std::chrono::duration<double> timeout(std::clamp(timeout_s, 0.0, 1e6));
    arrived_.wait_for(lock, timeout, [this] { return !jobs_.empty() || closed_; });
    if (closed_ || jobs_.empty()) return std::nullopt;
    const auto [request, choice] = jobs_.front();
    jobs_.pop_front();
    Slot &slot = this->slot(request, choice);
    slot.job = Slot::Job::taken;
    const auto n_drafted = static_cast<int64_t>(slot.ahead.size());
    MaskJob job{request, choice, slot.position + n_drafted, std::exchange(slot.untold, {}), n_drafted};
    job.tokens.insert(job.tokens.end(), slot.ahead.begin(), slot.ahead.end());
    return job;
}

MaskExchange::Slot *MaskExchange::find(RequestId request, int choice) {
    const auto found = slots_.find(request);
    if (found == slots_.end()) return nullptr;
    if (choice < 0 || static_cast<size_t>(choice) >= found->second.size())
        throw RequestError("grammar_mask", cat("no mask of choice ", choice, " was requested"));
    return &found->second[static_cast<size_t>(choice)];
}

MaskExchange::Provided MaskExchange::provide(RequestId request, int choice, int64_t position,
                                             std::vector<uint32_t> words, std::span<const int32_t> forced) {
    auto mask = std::make_shared<const TokenMask>(std::move(words), n_vocab_);
    for (int32_t token : forced)
        if (token < 0 || token >= n_vocab_)
            throw RequestError("grammar_mask", cat("forced token ", token, ": expected ids below ", n_vocab_));
    std::lock_guard lock(mutex_);
    Slot *const found = find(request, choice);
    if (found == nullptr) return {};
    Slot &slot = *found;
    if (slot.job == Slot::Job::outdated) {
        enqueue({request, choice}, slot);
        return {};
    }
    if (slot.job != Slot::Job::taken || position != slot.position + static_cast<int64_t>(slot.ahead.size()))
        throw RequestError("grammar_mask",
                           cat("the mask of token ", position, " of choice ", choice, " was not requested"));
    Provided provided;
    if (slot.masks.empty()) {
        provided.was_waited_for = std::exchange(slot.waited_for, false);
        n_forced_ += mean_weight * (static_cast<double>(forced.size()) - n_forced_);
        const double took_s = std::chrono::duration<double>(Clock::now() - slot.asked_at).count();
        seconds_ += mean_weight * (std::min(took_s, outlier_ratio * seconds_ + least_outlier_s) - seconds_);
    }
    for (int32_t token : forced) {
        slot.ahead.push_back(token);
        slot.masks.push_back(nullptr);
    }
    slot.masks.push_back(std::move(mask));
    provided_.notify_all();
    const bool is_elsewhere = cut_to_draft(slot);
    if (!extend(slot))
        slot.job = Slot::Job::none;
    else if (is_elsewhere || !jobs_.empty()) // the others first
        enqueue({request, choice}, slot);
    else
        provided.next = slot.ahead.back();
    return provided;
}

void MaskExchange::decline(RequestId request, int choice) {
    std::lock_guard lock(mutex_);
    Slot *const slot = find(request, choice);
    if (slot == nullptr) return;
    if (slot->job != Slot::Job::taken && slot->job != Slot::Job::outdated)
        throw RequestError("grammar_mask", cat("no mask of choice ", choice, " was requested"));
    if (slot->masks.empty()) return enqueue({request, choice}, *slot);
    slot->ahead.resize(slot->masks.size() - 1);
    slot->draft.clear();
    slot->job = Slot::Job::none;
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
