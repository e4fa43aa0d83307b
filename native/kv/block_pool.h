// Which blocks of the cache are whose.  Accounting only: the contents are in kv_store.
//
// Invariants (check() verifies them):
// - block 0 is the null block: padding rows write to it, and it is never handed out;
// - free + referenced = all but the null block, and a block is on a list of free ones exactly when nobody refers to it;
// - a hash names at most one block, and a block has at most one hash: the two maps are each other's inverse;
// - a published block's contents do not change while it is published.
// A freed block keeps its contents and its hash until it is handed out again, so it can still be found and shared.
// Blocks without a hash are reused first, then published ones in the pool's order of reuse.  Pools that share a ledger
// share its budget: one may grow at the cost of what another only keeps in case it is asked for again.
//
// States of recurrent layers are pooled the same way: a slot is a block, and slot 0 is the zero state.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kv/cache_ledger.h"
#include "kv/free_list.h"
#include "kv/lru_half.h"
#include "kv/prefix_hash.h"

namespace quire {

enum class BlockId : int32_t { null = 0 };
constexpr int32_t index(BlockId block) { return static_cast<int32_t>(block); }

struct BlockCopy { // contents to be copied before the next step writes
    BlockId from, to;
};

// Which of the blocks that only may be asked for again goes first.
enum class BlockReuse {
    by_age, // the least recently freed one
    // Takes, of the less recently freed half, the next block above the last one taken, so that blocks of running
    // sequences lie near each other, where steps cost less for it.  Blocks freed since are safe, and unused ones go
    // in the order in which it came.
    by_address,
};

class BlockPool {
  public:
    // n_blocks counts the null block, as the store does.  Alone, with memory for every block:
    BlockPool(int32_t n_blocks, int block_tokens, BlockReuse reuse = BlockReuse::by_age);
    // Beside others of one ledger.  `group` names the pool in edits.
    BlockPool(int32_t n_blocks, int block_tokens, size_t block_bytes, std::shared_ptr<CacheLedger> ledger, int group,
              BlockReuse reuse = BlockReuse::by_age);
    ~BlockPool() { ledger_->detach(this); }
    BlockPool(const BlockPool &) = delete;
    BlockPool &operator=(const BlockPool &) = delete;

    int32_t n_blocks() const { return static_cast<int32_t>(blocks_.size()); }
    int32_t n_usable() const { return n_blocks() - 1; }
    int block_tokens() const { return block_tokens_; }
    size_t block_bytes() const { return block_bytes_; }
    int32_t n_free() const { return cached_.size() + blank_.size(); }
    int32_t n_blank() const { return blank_.size(); } // free ones without contents
    int32_t n_referenced() const { return n_usable() - n_free(); }
    // Blocks that allocate() can give before anything is released.
    int64_t n_available() const {
        return std::min(int64_t{n_free()}, static_cast<int64_t>(ledger_->available_bytes() / block_bytes_));
    }
    int32_t n_published() const { return static_cast<int32_t>(by_hash_.size()); }
    int64_t n_evictions() const { return n_evictions_; } // published blocks whose memory went to other contents
    int64_t blocks_for_tokens(int64_t n_tokens) const { return (n_tokens + block_tokens_ - 1) / block_tokens_; }

    // A private block of undefined contents, with one reference; none when nothing is available.
    std::optional<BlockId> allocate();
    void retain(BlockId block); // one more reference; also revives a cached block
    void release(BlockId block);
    void touch(BlockId block); // a cached block becomes the most recently freed one
    int32_t n_references(BlockId block) const { return at(block).n_references; }
    bool is_free(BlockId block) const { return at(block).n_references == 0; }

    // Makes a full block findable.  False, and nothing changes, when the hash names another block already: two
    // sequences computed the same tokens at once, and the later copy stays private.
    bool publish(BlockId block, const PrefixHash &hash);
    void unpublish(BlockId block); // its contents are about to change
    std::optional<BlockId> find(const PrefixHash &hash) const;
    const std::optional<PrefixHash> &hash(BlockId block) const { return at(block).hash; }
    void forget_published(); // no block can be found any more (the contents were lost)

    std::vector<BlockId> free_blocks() const; // in the order of reuse, were the pool alone
    void check() const; // InternalError names the invariant that broke

    // For the ledger.  When the block was freed that is to be reused first, 0 for one that nobody can find.
    std::optional<uint64_t> oldest_cached_at() const;
    void discard_oldest(); // it becomes blank, and gives back its bytes

  private:
    struct Block {
        int32_t n_references = 0;
        std::optional<PrefixHash> hash;
        uint64_t freed_at = 0;
    };
    void set_free(BlockId block);
    BlockId take_oldest();
    BlockId take_next();
    void evict(BlockId block);
    void unlist(BlockId block);
    void require_by_age() const;
    void require_halves() const;
    const Block &at(BlockId block) const;
    Block &at(BlockId block) { return const_cast<Block &>(std::as_const(*this).at(block)); }
    int block_tokens_;
    size_t block_bytes_;
    std::shared_ptr<CacheLedger> ledger_;
    int group_;
    std::vector<Block> blocks_;
    FreeList cached_; // free ones with contents: unpublished ones first, then by age
    FreeList blank_;
    std::optional<LruHalf> halves_; // by address: of the published ones of cached_
    int32_t last_ = 0; // the last block handed out that was blank or published
    std::unordered_map<PrefixHash, BlockId, PrefixHashHasher> by_hash_;
    int64_t n_evictions_ = 0;
};

} // namespace quire
