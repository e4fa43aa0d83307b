// Places to merge, by rank: a list per rank and a bitmap of the ranks that have one.  Constant time for each place,
// where a heap of a long run of one character would be n log n.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace quire::tokenizer {

class RankQueue {
  public:
    explicit RankQueue(size_t n_ranks)
        : n_words_(n_ranks / 64 + 1), heads_(zeros<uint32_t>(n_ranks)), tails_(zeros<uint32_t>(n_ranks)),
          bits_(zeros<uint64_t>(n_words_)), first_word_(n_words_) {}

    void push(uint32_t rank, uint32_t place) {
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

    // Take all places of the lowest rank, ascending; false when there are none at all.
    bool take_lowest(uint32_t &rank, std::vector<uint32_t> &places) {
        while (first_word_ < n_words_ && bits_[first_word_] == 0) ++first_word_;
        if (first_word_ == n_words_) return false;
        rank = static_cast<uint32_t>(first_word_ * 64 + static_cast<size_t>(std::countr_zero(bits_[first_word_])));
        bits_[first_word_] &= bits_[first_word_] - 1;
        places.clear();
        for (uint32_t entry = heads_[rank]; entry != 0; entry = entries_[entry].next) {
            places.push_back(entries_[entry].place);
        }
        entries_[tails_[rank]].next = free_; // used again while it is in the cache
        free_ = heads_[rank];
        heads_[rank] = 0;
        if (!std::is_sorted(places.begin(), places.end())) std::sort(places.begin(), places.end());
        return true;
    }

  private:
    struct Entry {
        uint32_t place, next; // next 0: the last
    };
    struct Free {
        void operator()(void *memory) const { std::free(memory); }
    };
    // The system's zero pages cost nothing until they are written: few ranks occur in one word.
    template <class T> static std::unique_ptr<T[], Free> zeros(size_t n) {
        auto *memory = static_cast<T *>(std::calloc(std::max<size_t>(n, 1), sizeof(T)));
        if (memory == nullptr) throw std::bad_alloc();
        return std::unique_ptr<T[], Free>(memory);
    }

    size_t n_words_;
    std::unique_ptr<uint32_t[], Free> heads_, tails_; // entries, 0: none
    std::unique_ptr<uint64_t[], Free> bits_;
    uint32_t free_ = 0; // entries to use again
    size_t first_word_; // no bit is set before it
    std::vector<Entry> entries_ = std::vector<Entry>(1);
};

} // namespace quire::tokenizer
