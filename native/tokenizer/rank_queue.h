// A priority queue of places to merge, by rank and then from the left: a list per rank and a bitmap of ranks with a
// list.  Each place takes nearly constant time; a heap would take n log n for a long run of one character.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <queue>
#include <vector>

#include "large_vector.h"

namespace quire::tokenizer {

class RankQueue {
  public:
    explicit RankQueue(size_t n_ranks)
        : n_words_(n_ranks / 64 + 1), heads_(zeros<uint32_t>(n_ranks)), tails_(zeros<uint32_t>(n_ranks)),
          bits_(zeros<uint64_t>(n_words_)), first_word_(n_words_) {}

    void push(uint32_t rank, uint32_t place) {
        if (depth_ > 0 && rank <= runs_[depth_ - 1].rank) {
            if (rank == runs_[depth_ - 1].rank) return runs_[depth_ - 1].late.push(place);
            lower_ = true;
        }
        add_to_list(rank, place);
    }

    // Take the leftmost place of the lowest rank; return false if the queue is empty.
    bool next(uint32_t &rank, uint32_t &place) {
        for (;;) {
            if (depth_ == 0 || lower_) {
                if (!begin_run()) return false;
            }
            Run &run = runs_[depth_ - 1];
            if (run.take(place)) {
                rank = run.rank;
                return true;
            }
            end_run();
        }
    }

  private:
    struct Entry {
        uint32_t place, next; // next is 0 for the last one
    };
    // The places of one rank while they are processed.  If a lower rank appears meanwhile, its run goes on top.
    struct Run {
        uint32_t rank = 0;
        size_t taken = 0;
        LargeVector<uint32_t> places; // ascending
        std::priority_queue<uint32_t, LargeVector<uint32_t>, std::greater<>> late;

        bool take(uint32_t &place) {
            const bool listed = taken < places.size();
            if (late.empty()) {
                if (listed) place = places[taken++];
                return listed;
            }
            if (listed && places[taken] < late.top()) {
                place = places[taken++];
            } else {
                place = late.top();
                late.pop();
            }
            return true;
        }
    };
    struct Free {
        void operator()(void *memory) const { std::free(memory); }
    };
    // The system's zero pages cost nothing until they are written, and few ranks occur in one word.
    template <class T> static std::unique_ptr<T[], Free> zeros(size_t n) {
        auto *memory = static_cast<T *>(std::calloc(std::max<size_t>(n, 1), sizeof(T)));
        if (memory == nullptr) throw std::bad_alloc();
        return std::unique_ptr<T[], Free>(memory);
    }

    void add_to_list(uint32_t rank, uint32_t place) {
        uint32_t entry = free_;
        if (entry == 0) {
            entry = static_cast<uint32_t>(entries_.size());
            entries_.push_back({place, 0});
        } else {
            free_ = entries_[entry].next;
            entries_[entry] = {place, 0};
        }
        if (heads_[rank] == 0) {
            heads_[rank] = entry;
            bits_[rank / 64] |= uint64_t{1} << rank % 64;
            first_word_ = std::min<size_t>(first_word_, rank / 64);
        } else {
            entries_[tails_[rank]].next = entry;
        }
        tails_[rank] = entry;
    }

    // Find the lowest rank with a list; return false if there is none.
    bool lowest(uint32_t &rank) {
        while (first_word_ < n_words_ && bits_[first_word_] == 0) ++first_word_;
        if (first_word_ == n_words_) return false;
        rank = static_cast<uint32_t>(first_word_ * 64 + static_cast<size_t>(std::countr_zero(bits_[first_word_])));
        return true;
    }

    template <class Sink> void take_list(uint32_t rank, Sink &&sink) {
        bits_[rank / 64] &= ~(uint64_t{1} << rank % 64);
        for (uint32_t entry = heads_[rank]; entry != 0; entry = entries_[entry].next) sink(entries_[entry].place);
        entries_[tails_[rank]].next = free_; // reused while it is in the cache
        free_ = heads_[rank];
        heads_[rank] = 0;
    }

    bool begin_run() {
        lower_ = false;
        uint32_t rank = 0;
        if (!lowest(rank)) return false;
        if (depth_ == runs_.size()) runs_.emplace_back();
        Run &run = runs_[depth_++];
        run.rank = rank, run.taken = 0;
        run.places.clear();
        take_list(rank, [&](uint32_t place) { run.places.push_back(place); });
        if (!std::is_sorted(run.places.begin(), run.places.end())) std::sort(run.places.begin(), run.places.end());
        return true;
    }

    // Go back to the run below, unless a list has a lower rank.
    void end_run() {
        --depth_;
        uint32_t rank = 0;
        if (depth_ == 0 || !lowest(rank)) return;
        Run &run = runs_[depth_ - 1];
        lower_ = rank < run.rank;
        if (rank == run.rank) take_list(rank, [&](uint32_t place) { run.late.push(place); });
    }

    size_t n_words_;
    std::unique_ptr<uint32_t[], Free> heads_, tails_; // entries; 0 means none
    std::unique_ptr<uint64_t[], Free> bits_;
    uint32_t free_ = 0; // list of free entries
    size_t first_word_; // no bit is set in the words before it
    LargeVector<Entry> entries_ = LargeVector<Entry>(1);
    std::vector<Run> runs_; // the first `depth_` are in use, by decreasing rank
    size_t depth_ = 0;
    bool lower_ = false; // true if there is a list with a lower rank than the last run
};

} // namespace quire::tokenizer
