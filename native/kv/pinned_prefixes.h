// Prefixes that stay in the cache although nobody computes with them: each holds a reference to what the next token
// after it needs.  A budget limits them, so that requests always find room.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/block_table.h"
#include "kv/cache_pool.h"
#include "kv/sequence_cache.h"

namespace quire {

enum class PinId : uint64_t {};

class PinnedPrefixes {
  public:
    PinnedPrefixes(std::shared_ptr<CachePool> pool, size_t most_bytes)
        : pool_(std::move(pool)), most_bytes_(most_bytes), counts_(pool_->n_groups() + 1) {}

    struct Pinned {
        PinId id{};
        int64_t n_tokens = 0;
    };
    // Pins what `match` found of a text.  CapacityError when it would take more than the budget.
    Pinned add(const SequenceCache::Names &names, const CacheMatch &match);
    void remove(PinId id); // a no-op for unknown ones, which have given way
    // Lets go of the oldest one, so that a request can run.  False: there is none.
    bool give_way();
    void clear();

    size_t held_bytes() const { return held_bytes_; } // blocks of several prefixes count once
    size_t most_bytes() const { return most_bytes_; }
    int64_t size() const { return static_cast<int64_t>(pins_.size()); }
    int64_t n_given_way() const { return n_given_way_; }
    // use(group, block) for each reference held; the last group is that of states.
    template <class Use> void for_each(const Use &use) const {
        for (const Pin &pin : pins_) for_blocks(pin, use);
    }

  private:
    struct Pin {
        PinId id;
        std::vector<BlockTable> tables;
        std::vector<BlockId> state; // the snapshot that ends there, or none
    };
    template <class Use> void for_blocks(const Pin &pin, const Use &use) const {
        for (size_t i = 0; i < pin.tables.size(); ++i)
            for (BlockId block : pin.tables[i].blocks())
                if (block != BlockId::null) use(i, block);
        for (BlockId slot : pin.state) use(pool_->n_groups(), slot);
    }
    BlockPool &pool(size_t group) const { return group < pool_->n_groups() ? *pool_->group(group) : pool_->states(); }
    void let_go(Pin &pin);

    std::shared_ptr<CachePool> pool_;
    size_t most_bytes_;
    std::deque<Pin> pins_; // the oldest first
    std::vector<std::unordered_map<int32_t, int32_t>> counts_; // for the blocks of each group, and for states
    size_t held_bytes_ = 0;
    uint64_t n_made_ = 0;
    int64_t n_given_way_ = 0;
};

} // namespace quire
