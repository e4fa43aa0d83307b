// Processes, or threads, that run one model together over memory that all of them map: its *ranks*.
//
// Ranks r * n_split to (r + 1) * n_split - 1 are stage r of a pipeline; those of one stage split its matrices (tensor
// parallel).  Rank 0 leads: it posts commands, which the others run in order.  Every wait ends when the group breaks,
// by whichever rank fails first or by a process that watches them.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace quire {

class RankGroup {
  public:
    static constexpr size_t slot_floats = size_t{1} << 20; // numbers of a sum at a time
    static constexpr int max_ranks = 64, max_pieces = 64;
    struct Sizes {
        int rank, n_split, n_stages;
    };
    // `memory`: zeroed by whoever made it, `size_bytes` of it, the same for all ranks.  ShapeError for sizes that
    // cannot be; CapacityError if the memory is too small.
    RankGroup(std::shared_ptr<uint8_t> memory, size_t size_bytes, Sizes sizes);
    // Bytes that a group needs, with so many of commands and of values that stages hand over.
    static size_t needed_bytes(int n_ranks, size_t command_bytes, size_t exchange_bytes);

    int rank() const { return sizes_.rank; }
    int n_ranks() const { return sizes_.n_split * sizes_.n_stages; }
    int n_split() const { return sizes_.n_split; }
    int n_stages() const { return sizes_.n_stages; }
    int stage() const { return sizes_.rank / sizes_.n_split; }
    int part() const { return sizes_.rank % sizes_.n_split; } // which share of its stage's matrices

    // Ends every wait of every rank, now and later, with a DeviceError of that message.  Keeps the first one.
    void fail(const std::string &message);
    bool is_broken() const;
    void check() const; // DeviceError if it is broken

    // Sums over the ranks of a stage, which all make the same calls in the same order: each writes its numbers to
    // begin_sum(), at most slot_floats of them, then calls meet(); part_of_sum() then has those of every rank, until
    // the call after the next begin_sum().
    float *begin_sum();
    void meet();
    const float *part_of_sum(int part) const;

    // Commands of rank 0.  CapacityError if one does not fit.
    void post(std::span<const uint8_t> command); // waits until all ranks have done the one before
    // Waits for the next one, which is there until done().
    std::span<const uint8_t> next();
    void done();

    // Pieces of a step that stages run: each is announced by the rank whose part is 0, with a number that grows.
    void announce(int piece, uint32_t number);
    void await(int piece, uint32_t number);
    std::span<uint8_t> exchange() const { return {memory_.get() + exchange_at_, size_bytes_ - exchange_at_}; }

  private:
    struct Word;
    struct Head;
    Head &head() const { return *reinterpret_cast<Head *>(memory_.get()); }
    void set(Word &word, uint32_t value);
    void await(Word &word, uint32_t value) const;
    [[noreturn]] void throw_broken() const;
    float *slot(int rank, uint32_t number) const;

    std::shared_ptr<uint8_t> memory_;
    size_t size_bytes_, command_at_, exchange_at_;
    Sizes sizes_;
    uint32_t n_sums_ = 0, n_commands_ = 0;
};

} // namespace quire
