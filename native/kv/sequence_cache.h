// The part of the cache that one sequence holds: a table of blocks for each group of layers, and a private slot of
// state.
//
// Rows behind the window or chunk of every later token are dropped while the sequence goes on.  What the end of the
// last whole block needs is kept, so that whoever comes back to this prefix finds it.  A recurrent state can only be
// taken up where a copy of it was kept: a *snapshot*, named like the block that ends there.
//
// Rows of a source text are written as a whole, and stay until all is released.  They are found as a whole, too.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kv/block_table.h"
#include "kv/cache_pool.h"

namespace quire {

// A prefix that the pool holds for every group, and what taking it would mean.
struct CacheMatch {
    int64_t n_tokens = 0; // whole blocks
    int64_t n_lost_tokens = 0; // after those, that some groups still have, while others lack what they need
    std::vector<PrefixMatch> groups;
    bool has_source = false; // all of the source text's rows
};

enum class SnapshotKind {
    spaced, // so many tokens after the one before, for texts that diverge
    message, // where a conversation is likely to be taken up: it counts as used when the sequence ends
    rolling, // like message, until the sequence has the next one
};

class SequenceCache {
  public:
    // The sequence computes at most `step_tokens` tokens at a time.
    SequenceCache(std::shared_ptr<CachePool> pool, int64_t step_tokens);
    ~SequenceCache();
    SequenceCache(SequenceCache &&other) noexcept { *this = std::move(other); }
    SequenceCache &operator=(SequenceCache &&other) noexcept;
    SequenceCache(const SequenceCache &) = delete;
    SequenceCache &operator=(const SequenceCache &) = delete;

    const std::vector<BlockTable> &tables() const { return tables_; }
    std::optional<BlockId> state() const { return state_; } // none before it is taken, or if no layer has a state
    std::optional<BlockId> kept_state() const { return kept_state_; }
    bool empty() const; // holds nothing

    // Names by which blocks are found and, while the cache is in use, published.
    struct Names {
        std::span<const PrefixHash> text, source = {}; // source: of all its blocks
    };
    // The longest prefix of at most max_tokens tokens for which every group has what it needs; changes nothing.
    CacheMatch match(const Names &names, int64_t max_tokens) const;
    // A longer prefix, with what the tiers below have: its tokens, and all of it that the pool lacks.
    struct Below {
        int64_t n_tokens = 0;
        std::vector<TierKey> keys;
    };
    Below match_below(const Names &names, int64_t max_tokens, BlockTiers &tiers) const;
    std::vector<TierKey> keys_of(const Names &names, int64_t n_blocks) const; // all that a prefix needs
    // Blocks and states that the match needs are evicted last.
    void touch(const Names &names, const CacheMatch &match) const;
    // True if a sequence of n_tokens can take the match, and leave n_kept_back blocks of each group that grows free.
    bool has_room_for(const Names &names, const CacheMatch &match, int64_t n_tokens, int64_t n_kept_back) const;
    // Shares the match and reserves what computing n_tokens takes, and the source.  The cache must be empty.
    // CapacityError when there is no room.
    void take(const Names &names, const CacheMatch &match, int64_t n_tokens);
    // The rows of the source are written: they can be found.
    void publish_source(std::span<const PrefixHash> source);

    // True if writing the positions [begin, end) finds its blocks, and, where it takes some, leaves so many of each
    // group.
    bool has_room_to_write(int64_t begin, int64_t end, int64_t n_kept_back = 0) const;
    // Blocks for [begin, end), those that others share copied.  CapacityError when there is no room.
    void prepare(int64_t begin, int64_t end);
    // The tokens of `hashes` are computed, n_computed in all, of n_tokens: full blocks can be found, and what no later
    // token needs is dropped.
    void advance(std::span<const PrefixHash> hashes, int64_t n_computed, int64_t n_tokens);
    // Keeps a copy of the state, which is that after the block of the last hash.  Without room for one: nothing.
    void snapshot(std::span<const PrefixHash> hashes, SnapshotKind kind);

    // A private copy of the state, to come back to; nothing where no layer has one.  CapacityError when there is no
    // slot.
    void keep_state();
    bool keeps_state() const { return kept_state_.has_value(); }
    void drop_kept_state();
    bool restore_state(); // false: none was kept
    // The tokens after n_computed are other ones from now on.  False, and nothing changes: a window has passed rows
    // that the next token needs.
    bool cut_back(int64_t n_computed);
    void cut(int64_t n_tokens); // gives back the last blocks, where computing n_tokens does not need them

    bool can_fork() const; // there is a slot for the state
    SequenceCache fork() const; // shares every block and copies the state
    void release(); // gives everything back, the ends of all groups first, so that they are reused first

  private:
    struct Snapshot {
        BlockId slot;
        PrefixHash hash;
        int32_t n_blocks;
        SnapshotKind kind;
    };
    using Has = std::function<bool(const TierKey &)>;
    int64_t fitting_prefix(std::span<const PrefixHash> hashes, int64_t n_blocks, const Has &has) const;
    std::optional<int64_t> last_missing(size_t group, std::span<const PrefixHash> hashes, int64_t n_blocks,
                                        const Has &has) const;
    int64_t first_needed(size_t group, int64_t n_blocks) const;
    int64_t blocks_ahead(size_t group, int64_t first_block, int64_t n_tokens) const;
    void take_state(std::span<const PrefixHash> hashes, const CacheMatch &match);
    void match_source(size_t group, std::span<const PrefixHash> source, CacheMatch &match) const;
    bool is_source(size_t group) const { return pool_->lifetime(group).of_source; }
    bool is_there(const Snapshot &snapshot) const;
    void release_snapshot();
    void drop_rolling();

    std::shared_ptr<CachePool> pool_;
    int64_t step_tokens_ = 0;
    std::vector<BlockTable> tables_;
    std::optional<BlockId> state_, kept_state_;
    std::vector<Snapshot> snapshots_; // made or found here, in order of position; the pool may have lost them
};

} // namespace quire
