// The blocks of one sequence, in order of position.
//
// Invariants: the table refers to each of its blocks once; position p lies in block p / block_tokens at offset
// p % block_tokens; while it is in use it grows, and gives back its end only where a draft or a text is cut back; a
// block changes only by copy on write.  Leading blocks that no later token needs are dropped: the null block stands
// in their places.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace quire {

// A prefix that the pool holds: what taking it would mean.
struct PrefixMatch {
    int64_t n_tokens = 0; // whole blocks
    int32_t n_blocks = 0;
    int32_t first_block = 0; // those before it are not needed
    int32_t n_free_blocks = 0; // needed ones that are free and would not be any more
};

class BlockTable {
  public:
    explicit BlockTable(std::shared_ptr<BlockPool> pool) : pool_(std::move(pool)) {}
    ~BlockTable();
    BlockTable(BlockTable &&other) noexcept = default;
    BlockTable &operator=(BlockTable &&other) noexcept;
    BlockTable(const BlockTable &) = delete; // fork() says that it shares
    BlockTable &operator=(const BlockTable &) = delete;

    const std::vector<BlockId> &blocks() const { return blocks_; }
    int32_t n_blocks() const { return static_cast<int32_t>(blocks_.size()); } // dropped ones included
    int32_t n_dropped() const { return static_cast<int32_t>(n_dropped_); }
    const std::shared_ptr<BlockPool> &pool() const { return pool_; }
    int32_t slot(int64_t position) const; // block * block_tokens + offset; ShapeError outside the blocks it has

    // The longest run of published blocks of at most max_tokens tokens; changes nothing.
    PrefixMatch match(std::span<const PrefixHash> hashes, int64_t max_tokens) const;
    void take(std::span<const PrefixHash> hashes, const PrefixMatch &match); // shares them; the table must be empty

    // Free blocks that writing the positions [begin, end) takes: new ones and a copy of a shared one at `begin`.
    int32_t blocks_needed(int64_t begin, int64_t end) const;
    // Blocks for n_tokens positions in all.  CapacityError when the pool has too few; then nothing changes.
    void reserve(int64_t n_tokens);
    // Makes the block of `position` private and unpublished before it is written.  A shared one is replaced, and the
    // caller copies the contents.  CapacityError when there is no free block; then nothing changes.
    std::optional<BlockCopy> ensure_writable(int64_t position);
    // The tokens of `hashes` are computed: their blocks can be found from now on.
    void publish(std::span<const PrefixHash> hashes);
    BlockTable fork() const; // shares every block, a partial last one too
    void drop(int32_t n_blocks); // gives back the leading blocks; they can be found as long as nobody reuses them
    void pop(); // gives back the last block
    void release(); // gives all blocks back, the last one first, so that it is reused first

  private:
    size_t block_index(int64_t position) const;
    std::shared_ptr<BlockPool> pool_;
    std::vector<BlockId> blocks_;
    size_t n_offered_ = 0; // leading blocks that publish() has seen
    size_t n_dropped_ = 0;
};

} // namespace quire
