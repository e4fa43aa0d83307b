#include "kv/block_pool.h"

#include "core/error.h"

namespace quire {
namespace {

int32_t checked_block_count(int32_t n_blocks) {
    if (n_blocks < 2)
        throw CapacityError("block_pool", cat("a pool must have the null block and one more but has ", n_blocks));
    return n_blocks;
}

void require(bool holds, const char *invariant, int32_t block) {
    if (!holds) throw InternalError("block_pool", cat(invariant, " but that is not so for block ", block));
}

} // namespace

BlockPool::BlockPool(int32_t n_blocks, int block_tokens)
    : block_tokens_(block_tokens), blocks_(static_cast<size_t>(checked_block_count(n_blocks))), free_(n_blocks) {
    if (block_tokens < 1) throw ShapeError("block_pool", cat("block_tokens must be positive but is ", block_tokens));
    for (int32_t id = 1; id < n_blocks; ++id) free_.push_back(id);
}

const BlockPool::Block &BlockPool::at(BlockId block) const {
    if (index(block) < 1 || index(block) >= n_blocks())
        throw ShapeError("block_pool", cat("a block must be 1 to ", n_blocks() - 1, " but is ", index(block)));
    return blocks_[static_cast<size_t>(index(block))];
}

std::optional<BlockId> BlockPool::allocate() {
    const auto id = free_.pop_front();
    if (!id) return std::nullopt;
    const BlockId block{*id};
    n_evictions_ += at(block).hash.has_value();
    unpublish(block);
    at(block).n_references = 1;
    return block;
}

void BlockPool::retain(BlockId block) {
    if (at(block).n_references++ == 0) free_.remove(index(block));
}

void BlockPool::release(BlockId block) {
    Block &freed = at(block);
    if (freed.n_references == 0)
        throw InternalError("block_pool", cat("a released block must be referenced but ", index(block), " is free"));
    if (--freed.n_references > 0) return;
    if (freed.hash)
        free_.push_back(index(block));
    else
        free_.push_front(index(block)); // nothing in it is worth keeping
}

bool BlockPool::publish(BlockId block, const PrefixHash &hash) {
    Block &published = at(block);
    if (published.hash == hash) return true;
    if (published.n_references == 0)
        throw InternalError("block_pool", cat("a published block must be referenced but ", index(block), " is free"));
    if (published.hash)
        throw InternalError("block_pool", cat("a block must have one hash but ", index(block), " has another one"));
    if (!by_hash_.try_emplace(hash, block).second) return false;
    published.hash = hash;
    return true;
}

void BlockPool::unpublish(BlockId block) {
    Block &hidden = at(block);
    if (!hidden.hash) return;
    by_hash_.erase(*hidden.hash);
    hidden.hash.reset();
}

std::optional<BlockId> BlockPool::find(const PrefixHash &hash) const {
    const auto found = by_hash_.find(hash);
    return found == by_hash_.end() ? std::nullopt : std::optional(found->second);
}

void BlockPool::forget_published() {
    by_hash_.clear();
    for (Block &block : blocks_) block.hash.reset();
}

std::vector<BlockId> BlockPool::free_blocks() const {
    std::vector<BlockId> blocks;
    for (int32_t id : free_.in_order()) blocks.push_back(BlockId{id});
    return blocks;
}

void BlockPool::check() const {
    require(blocks_[0].n_references == 0 && !blocks_[0].hash && !free_.contains(0), "nobody may own the null block", 0);
    int32_t n_free = 0, n_published = 0;
    for (int32_t id = 1; id < n_blocks(); ++id) {
        const Block &block = blocks_[static_cast<size_t>(id)];
        require(block.n_references >= 0, "a reference count must not be negative", id);
        require((block.n_references == 0) == free_.contains(id), "a block must be listed if and only if free", id);
        n_free += block.n_references == 0;
        if (!block.hash) continue;
        ++n_published;
        require(find(*block.hash) == BlockId{id}, "a block's hash must name it", id);
    }
    if (n_free != free_.size() || static_cast<size_t>(n_free) != free_.in_order().size())
        throw InternalError("block_pool", cat("free + referenced must be all blocks but ", n_free, " are free and ",
                                              free_.size(), " are listed"));
    if (static_cast<size_t>(n_published) != by_hash_.size())
        throw InternalError("block_pool", cat("each hash must name its block but ", n_published,
                                              " blocks have one and ", by_hash_.size(), " are known"));
}

} // namespace quire
