#include "core/rank_group.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/system.h"

namespace quire {
namespace {

constexpr size_t group_page_bytes = 4096, command_bytes = size_t{32} << 20;
constexpr int n_spins = 2000; // some 20 microseconds: what the other rank's share of a layer is behind by
constexpr double sleep_s = 0.05; // at most, as a rank that fails wakes nobody who is about to sleep

size_t whole_pages(size_t size_bytes) {
    return (size_bytes + group_page_bytes - 1) / group_page_bytes * group_page_bytes;
}

// Numbers grow and wrap.
bool has_come(uint32_t value, uint32_t wanted) { return static_cast<int32_t>(value - wanted) >= 0; }

void pause_briefly() {
#if defined(__x86_64__) || defined(_M_X64)
    __builtin_ia32_pause();
#endif
}

} // namespace

struct alignas(64) RankGroup::Word {
    std::atomic<uint32_t> value, n_sleepers;
};

struct RankGroup::Head {
    std::atomic<uint32_t> failure; // 0: none; 1: its message is being written; 2: it is there
    std::array<char, 500> message;
    std::atomic<uint64_t> command_size;
    std::array<Word, max_ranks> met, finished;
    std::array<Word, max_pieces> pieces;
    Word posted;
};

namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free); // so that it works between processes

size_t slots_at(size_t head_bytes) { return whole_pages(head_bytes); }

size_t slots_bytes(int n_ranks) { return 2 * static_cast<size_t>(n_ranks) * RankGroup::slot_floats * sizeof(float); }

} // namespace

size_t RankGroup::needed_bytes(int n_ranks, size_t of_commands, size_t of_exchange) {
    return slots_at(sizeof(Head)) + slots_bytes(n_ranks) + whole_pages(std::max(of_commands, command_bytes)) +
           whole_pages(of_exchange);
}

RankGroup::RankGroup(std::shared_ptr<uint8_t> memory, size_t size_bytes, Sizes sizes)
    : memory_(std::move(memory)), size_bytes_(size_bytes), sizes_(sizes) {
    const bool fits = sizes.n_split >= 1 && sizes.n_stages >= 1 && sizes.n_split <= max_ranks &&
                      sizes.n_stages <= max_ranks && n_ranks() <= max_ranks && sizes.rank >= 0 &&
                      sizes.rank < n_ranks();
    if (!fits)
        throw ShapeError("parallel", cat("rank ", sizes.rank, " of ", sizes.n_stages, " stages of ", sizes.n_split,
                                         ": expected at most ", max_ranks, " ranks"));
    command_at_ = slots_at(sizeof(Head)) + slots_bytes(n_ranks());
    exchange_at_ = command_at_ + command_bytes;
    if (size_bytes < exchange_at_)
        throw CapacityError("parallel", cat(size_bytes, " bytes of shared memory: ", exchange_at_, " are needed"));
}

void RankGroup::fail(const std::string &message) {
    uint32_t none = 0;
    if (!head().failure.compare_exchange_strong(none, 1)) return;
    const size_t n = std::min(message.size(), head().message.size() - 1);
    std::memcpy(head().message.data(), message.data(), n);
    head().failure = 2;
    for (auto *words : {&head().met, &head().finished, &head().pieces})
        for (Word &word : *words) wake_waiters(word.value);
    wake_waiters(head().posted.value);
}

bool RankGroup::is_broken() const { return head().failure.load(std::memory_order_acquire) != 0; }

void RankGroup::check() const {
    if (is_broken()) throw_broken();
}

void RankGroup::throw_broken() const {
    while (head().failure.load(std::memory_order_acquire) == 1) pause_briefly();
    throw DeviceError("parallel", head().message.data());
}

void RankGroup::set(Word &word, uint32_t value) {
    word.value.store(value); // sequentially consistent, like the sleepers' count and look
    if (word.n_sleepers.load() > 0) wake_waiters(word.value);
}

void RankGroup::await(Word &word, uint32_t value) const {
    for (int i = 0; i < n_spins; ++i) {
        if (has_come(word.value.load(std::memory_order_acquire), value)) return;
        pause_briefly();
    }
    for (;;) {
        ++word.n_sleepers;
        const uint32_t seen = word.value.load();
        if (!has_come(seen, value) && !is_broken()) wait_for_change(word.value, seen, sleep_s);
        --word.n_sleepers;
        if (has_come(word.value.load(), value)) return;
        check();
    }
}

float *RankGroup::slot(int rank, uint32_t number) const {
    const size_t which = 2 * static_cast<size_t>(rank) + number % 2;
    return reinterpret_cast<float *>(memory_.get() + slots_at(sizeof(Head))) + which * slot_floats;
}

// Two slots take turns: whoever writes to one again has met the others since, and so they have read it.
float *RankGroup::begin_sum() { return slot(rank(), ++n_sums_); }

void RankGroup::meet() {
    set(head().met[static_cast<size_t>(rank())], n_sums_);
    for (int part = 0; part < n_split(); ++part)
        await(head().met[static_cast<size_t>(stage() * n_split() + part)], n_sums_);
}

const float *RankGroup::part_of_sum(int part) const { return slot(stage() * n_split() + part, n_sums_); }

void RankGroup::post(std::span<const uint8_t> command) {
    if (command.size() > command_bytes)
        throw CapacityError("parallel",
                            cat("a step of ", command.size(), " bytes exceeds ", command_bytes, ": use smaller steps"));
    for (int r = 1; r < n_ranks(); ++r) await(head().finished[static_cast<size_t>(r)], n_commands_);
    check();
    std::memcpy(memory_.get() + command_at_, command.data(), command.size());
    head().command_size = command.size();
    set(head().posted, ++n_commands_);
}

std::span<const uint8_t> RankGroup::next() {
    await(head().posted, ++n_commands_);
    return {memory_.get() + command_at_, static_cast<size_t>(head().command_size.load())};
}

void RankGroup::done() { set(head().finished[static_cast<size_t>(rank())], n_commands_); }

void RankGroup::announce(int piece, uint32_t number) { set(head().pieces[static_cast<size_t>(piece)], number); }

void RankGroup::await(int piece, uint32_t number) { await(head().pieces[static_cast<size_t>(piece)], number); }

} // namespace quire
