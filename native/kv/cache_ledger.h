// One budget in bytes for several pools of blocks, and the order in which their free blocks are reused.
//
// Invariants (check() verifies them):
// - a block is held (someone refers to it), cached (free, with contents) or blank (free, without contents or memory);
// - filled bytes are those of held and cached blocks, and never exceed the budget.
// A pool that needs a block takes, in this order: a free block of its own whose contents nobody can find; a blank one,
// if the budget has room; the least recently freed block of all pools, or in place of its own the next one in its
// order. A block of another pool becomes blank then, and whoever owns the memory is told by an edit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "kv/block_tiers.h"

namespace quire {

class BlockPool;

// A change of contents that the accounting has decided on.  Edits are made in their order, before the next step writes.
struct CacheEdit {
    enum class Kind {
        copy, // the contents of `from` to `to`
        discard, // the contents of `from` are not needed any more, and its memory is counted elsewhere
        offer, // the contents of `from`, which are those of `name`, go to the tiers below if they want them
        load, // `data` from the tiers below to `to`
    };
    static constexpr int states = -1;
    Kind kind;
    int group; // the group of blocks, or `states`
    int32_t from, to = 0;
    PrefixHash name = {};
    TierOffer why = TierOffer::published;
    TierData data = {};
};

class CacheLedger {
  public:
    explicit CacheLedger(size_t size_bytes) : size_bytes_(size_bytes) {}
    CacheLedger(const CacheLedger &) = delete;
    CacheLedger &operator=(const CacheLedger &) = delete;

    size_t size_bytes() const { return size_bytes_; }
    size_t held_bytes() const { return held_bytes_; }
    size_t filled_bytes() const { return filled_bytes_; }
    size_t available_bytes() const { return size_bytes_ - held_bytes_; } // cached blocks can be evicted
    std::vector<CacheEdit> take_edits() { return std::exchange(edits_, {}); }
    void add(CacheEdit edit) { edits_.push_back(std::move(edit)); }
    // Contents that others may want are offered to them from now on.
    void make_offers() { makes_offers_ = true; }
    void offer(int group, int32_t block, const PrefixHash &name, TierOffer why) {
        if (makes_offers_) add({CacheEdit::Kind::offer, group, block, 0, name, why});
    }
    void check() const; // InternalError names the invariant that broke

  private:
    friend class BlockPool;
    void attach(BlockPool *pool) { pools_.push_back(pool); }
    void detach(BlockPool *pool) { std::erase(pools_, pool); }
    uint64_t tick() { return ++clock_; } // orders releases
    // True if the pool may fill a blank block; blocks of other pools that were freed longer ago than its own give their
    // bytes.  False: it has to reuse a cached block of its own, if there is one.
    bool claim_blank(BlockPool &pool);

    size_t size_bytes_;
    size_t held_bytes_ = 0, filled_bytes_ = 0;
    uint64_t clock_ = 0;
    bool makes_offers_ = false;
    std::vector<BlockPool *> pools_;
    std::vector<CacheEdit> edits_;
};

} // namespace quire
