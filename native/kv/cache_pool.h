// Everything that the sequences of a model keep between steps, under one budget in bytes: blocks of each group of
// layers, and slots of recurrent state.  Accounting only.
#pragma once

#include <memory>
#include <vector>

#include "kv/block_pool.h"
#include "kv/cache_spec.h"

namespace quire {

struct CachePoolSpec {
    struct Group {
        CacheLifetime lifetime;
        int32_t n_blocks; // ids, the null block included
        size_t block_bytes;
    };
    std::vector<Group> groups;
    int block_tokens = 0;
    int32_t n_states = 0; // slots, slot 0 included
    size_t state_bytes = 0; // 0: no layer has a state
    size_t budget_bytes = 0;
    BlockReuse reuse = BlockReuse::by_age; // for groups: states may lie anywhere
};

// How much a sequence takes: blocks of each group, and slots.
struct CacheNeed {
    std::vector<int64_t> blocks;
    int64_t states = 0;
    CacheNeed &operator+=(const CacheNeed &other);
};

// Held: someone computes with it.  Cached: free, and found again until it is needed for other contents.
struct CacheStats {
    struct Kind {
        size_t held_bytes = 0, cached_bytes = 0;
    };
    size_t budget_bytes = 0, held_bytes = 0;
    size_t unit_bytes = 0; // a block in every group; where no layer keeps rows, a state
    std::vector<Kind> groups;
    Kind states; // cached ones are snapshots
    int64_t n_snapshots = 0;
};

class CachePool {
  public:
    explicit CachePool(CachePoolSpec spec);
    const CachePoolSpec &spec() const { return spec_; }
    int block_tokens() const { return spec_.block_tokens; }
    size_t n_groups() const { return groups_.size(); }
    const std::shared_ptr<BlockPool> &group(size_t i) const { return groups_[i]; }
    const CacheLifetime &lifetime(size_t i) const { return spec_.groups[i].lifetime; }
    bool has_source() const; // a group is of a source text
    bool has_bidirectional_media() const; // a group has it
    bool has_states() const { return states_ != nullptr; }
    BlockPool &states() const { return *states_; }
    const std::shared_ptr<BlockPool> &states_pool() const { return states_; }
    bool keeps_nothing() const { return groups_.empty() && !has_states(); }
    const CacheLedger &ledger() const { return *ledger_; }

    int64_t blocks_for_tokens(int64_t n_tokens) const { return (n_tokens + block_tokens() - 1) / block_tokens(); }
    // The blocks of a group that a sequence holds at most while it computes up to `step_tokens` tokens at a time.
    int64_t most_blocks(size_t group, int64_t n_tokens, int64_t step_tokens) const;
    // Blocks and states of all groups, and the blocks of a source text of n_source tokens.
    CacheNeed most_needed(int64_t n_tokens, int64_t step_tokens, int64_t n_source = 0) const;
    size_t bytes(const CacheNeed &need) const;
    bool can_hold(const CacheNeed &need) const; // were everything free
    bool has_room(const CacheNeed &need) const; // now

    void copy(int group, BlockId from, BlockId to) {
        ledger_->add({CacheEdit::Kind::copy, group, index(from), index(to)});
    }
    std::vector<CacheEdit> take_edits() { return ledger_->take_edits(); }
    void make_offers() { ledger_->make_offers(); } // to the tiers below
    void offer_state(BlockId slot, const PrefixHash &name) {
        ledger_->offer(CacheEdit::states, index(slot), name, TierOffer::published);
    }
    // Contents from the tiers below can be found from now on.  False: they could before, or there is no room.
    bool load(const TierEntry &entry);
    std::optional<BlockId> find(const TierKey &key) const { return pool_of(key.group).find(key.name); }
    bool has(const TierKey &key) const { return find(key).has_value(); }
    void forget_published(); // nothing can be found any more: an edit failed
    CacheStats stats() const;
    void check() const; // InternalError names the invariant that broke

  private:
    BlockPool &pool_of(int group) const {
        return group == CacheEdit::states ? *states_ : *groups_[static_cast<size_t>(group)];
    }
    CachePoolSpec spec_;
    std::shared_ptr<CacheLedger> ledger_;
    std::vector<std::shared_ptr<BlockPool>> groups_;
    std::shared_ptr<BlockPool> states_; // none where no layer has a state
};

} // namespace quire
