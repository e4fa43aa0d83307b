// Merging the bytes or characters of one word, lowest rank first and leftmost among equals.  For short words all pairs
// are compared after each merge; for long ones a queue over a linked list keeps the time linear.
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "large_vector.h"
#include "piece_table.h"
#include "rank_queue.h"

namespace quire::tokenizer {

// A receiver of merges, in order of decreasing precedence.
class MergeSink {
  public:
    MergeSink() = default;
    MergeSink(const MergeSink &) = delete;
    MergeSink &operator=(const MergeSink &) = delete;
    virtual ~MergeSink() = default;
    // Throws std::invalid_argument if the merge is malformed.
    virtual void add_merge(std::string_view left, std::string_view right) = 0;
};

// Pairs of bytes that some merge can join.  No merge spans any other pair of neighbours, so a long word is split there.
class Joints {
  public:
    void add(char left, char right) { pairs_[index(left, right)] = true; }
    bool operator()(char left, char right) const { return pairs_[index(left, right)]; }

  private:
    static size_t index(char left, char right) {
        return static_cast<size_t>(static_cast<uint8_t>(left)) << 8 | static_cast<uint8_t>(right);
    }
    std::bitset<65536> pairs_;
};

// Most words are one token.  Whether merging produces it is found out once per token, by any thread, and remembered.
class WholeWords {
  public:
    void reset(size_t n_pieces) { states_ = std::make_unique<std::atomic<uint8_t>[]>(n_pieces); }
    bool is_known(uint32_t piece) const { return states_[piece].load(std::memory_order_relaxed) == yes; }
    void learn(uint32_t piece, bool makes_itself) const {
        std::atomic<uint8_t> &state = states_[piece];
        if (state.load(std::memory_order_relaxed) == unasked) {
            state.store(makes_itself ? yes : no,
                        std::memory_order_relaxed); // only once, because threads share the cache line
        }
    }

  private:
    enum : uint8_t { unasked, yes, no };
    std::unique_ptr<std::atomic<uint8_t>[]> states_;
};

// `Alphabet::append(word, pieces)` appends the pieces that merging starts with.
template <class Alphabet> class Merger {
  public:
    Merger(const MergeIndex &merges, size_t n_ranks, const Alphabet &alphabet, const Joints &joints)
        : merges_(merges), n_ranks_(n_ranks), alphabet_(alphabet), joints_(joints) {}

    // Return the pieces of `word`, which must not be empty; valid until the next call.
    const LargeVector<uint32_t> &merge(std::string_view word) {
        if (word.size() <= short_word) return merge_part(word);
        parts_.clear();
        size_t begin = 0;
        for (size_t i = 1; i <= word.size(); ++i) {
            if (i < word.size() && joints_(word[i - 1], word[i])) continue;
            const LargeVector<uint32_t> &part = merge_part(word.substr(begin, i - begin));
            parts_.insert(parts_.end(), part.begin(), part.end());
            begin = i;
        }
        return parts_;
    }

  private:
    static constexpr size_t short_word = 96;
    static constexpr uint32_t none = 0xffffffff;

    const LargeVector<uint32_t> &merge_part(std::string_view word) {
        pieces_.clear();
        alphabet_.append(word, pieces_);
        if (pieces_.size() <= short_word) {
            merge_short();
        } else {
            merge_long();
        }
        return pieces_;
    }

    Merge pair(size_t left, size_t right) const { return merges_.find(pieces_[left], pieces_[right]); }

    void merge_short() {
        Merge found[short_word]; // the merge of the pair that starts at each place
        size_t n = pieces_.size();
        for (size_t i = 0; i + 1 < n; ++i) found[i] = pair(i, i + 1);
        while (n > 1) {
            size_t best = 0;
            for (size_t i = 1; i + 1 < n; ++i)
                if (found[i].rank < found[best].rank) best = i;
            if (found[best].rank == MergeIndex::no_rank) break;
            pieces_[best] = found[best].piece;
            --n;
            for (size_t i = best + 1; i < n; ++i) {
                pieces_[i] = pieces_[i + 1];
                if (i + 1 < n) found[i] = found[i + 1];
            }
            if (best + 1 < n) found[best] = pair(best, best + 1);
            if (best > 0) found[best - 1] = pair(best - 1, best);
        }
        pieces_.resize(n);
    }

    // Look up the pair that starts at `at` and queue it.
    void look(uint32_t at) {
        Link &link = links_[at];
        link.merge = link.next == none ? Merge{MergeIndex::no_rank, 0} : pair(at, link.next);
        if (link.merge.rank != MergeIndex::no_rank) queue_->push(link.merge.rank, at);
    }

    void merge_long() {
        const auto n = static_cast<uint32_t>(pieces_.size());
        if (!queue_) queue_.emplace(n_ranks_);
        links_.resize(n);
        for (uint32_t i = 0; i < n; ++i) {
            links_[i].previous = i == 0 ? none : i - 1;
            links_[i].next = i + 1 == n ? none : i + 1;
            look(i);
        }
        uint32_t rank = 0, place = 0;
        while (queue_->next(rank, place)) {
            if (links_[place].merge.rank == rank) join(place); // otherwise the pair no longer exists
        }
        size_t kept = 0;
        for (uint32_t i = 0; i != none; i = links_[i].next) pieces_[kept++] = pieces_[i];
        pieces_.resize(kept);
    }

    // Merge the pair at `at`.
    void join(uint32_t at) {
        Link &link = links_[at];
        pieces_[at] = link.merge.piece;
        links_[link.next].merge = {MergeIndex::no_rank, 0};
        link.next = links_[link.next].next;
        if (link.next != none) links_[link.next].previous = at;
        look(at);
        if (link.previous != none) look(link.previous);
    }

    struct Link {
        uint32_t previous = none, next = none;
        Merge merge{MergeIndex::no_rank, 0}; // the merge of this place and the next one
    };

    const MergeIndex &merges_;
    size_t n_ranks_;
    const Alphabet &alphabet_;
    const Joints &joints_;
    LargeVector<uint32_t> pieces_, parts_;
    LargeVector<Link> links_;
    std::optional<RankQueue> queue_; // made for the first long word
};

} // namespace quire::tokenizer
