#include "kv/block_pool.h"

#include <algorithm>

#include "core/error.h"

namespace quire {
namespace {

int32_t checked_block_count(int32_t n_blocks) {
    if (n_blocks < 2)
        throw CapacityError("block_pool",
                            cat("a pool has ", n_blocks, " blocks: expected at least 2, the null block included"));
    return n_blocks;
}

void require_of_block(bool holds, const char *problem, int32_t block) {
    if (!holds) throw InternalError("block_pool", cat("block ", block, ": ", problem));
}

} // namespace

BlockPool::BlockPool(int32_t n_blocks, int block_tokens, BlockReuse reuse)
    : BlockPool(n_blocks, block_tokens, 1,
                std::make_shared<CacheLedger>(static_cast<size_t>(checked_block_count(n_blocks) - 1)), 0, reuse) {}

BlockPool::BlockPool(int32_t n_blocks, int block_tokens, size_t block_bytes, std::shared_ptr<CacheLedger> ledger,
                     int group, BlockReuse reuse)
    : block_tokens_(block_tokens), block_bytes_(block_bytes), ledger_(std::move(ledger)), group_(group),
      blocks_(static_cast<size_t>(checked_block_count(n_blocks))), cached_(n_blocks), blank_(n_blocks) {
    if (block_tokens < 1)
        throw ShapeError("block_pool", cat("block_tokens is ", block_tokens, ": expected a positive number"));
    if (block_bytes < 1) throw ShapeError("block_pool", "block_bytes is 0: expected a positive number");
    for (int32_t id = 1; id < n_blocks; ++id) blank_.push_back(id);
    if (reuse == BlockReuse::by_address) halves_.emplace(n_blocks);
    ledger_->attach(this);
}

const BlockPool::Block &BlockPool::at(BlockId block) const {
    if (index(block) < 1 || index(block) >= n_blocks())
        throw ShapeError("block_pool", cat("block ", index(block), " is out of range: expected 1 to ", n_blocks() - 1));
    return blocks_[static_cast<size_t>(index(block))];
}

std::optional<BlockId> BlockPool::allocate() {
    BlockId block{};
    if (oldest_cached_at() == 0)
        block = take_oldest();
    else if (ledger_->claim_blank(*this))
        block = BlockId{last_ = *blank_.pop_front()};
    else if (cached_.size() > 0)
        block = take_next();
    else
        return std::nullopt;
    at(block).n_references = 1;
    ledger_->held_bytes_ += block_bytes_;
    return block;
}

BlockId BlockPool::take_oldest() {
    const BlockId block{*cached_.front()};
    unlist(block);
    evict(block);
    return block;
}

void BlockPool::evict(BlockId block) {
    const auto &hash = at(block).hash;
    if (!hash) return;
    ++n_evictions_;
    ledger_->offer(group_, index(block), *hash, TierOffer::evicted);
    unpublish(block);
}

BlockId BlockPool::take_next() {
    if (!halves_) return take_oldest();
    const BlockId block{last_ = *halves_->next_after(last_)};
    unlist(block);
    evict(block);
    return block;
}

void BlockPool::unlist(BlockId block) {
    cached_.remove(index(block));
    if (halves_ && halves_->contains(index(block))) halves_->remove(index(block));
}

std::optional<uint64_t> BlockPool::oldest_cached_at() const {
    const auto id = cached_.front();
    if (!id) return std::nullopt;
    const Block &oldest = at(BlockId{*id});
    return oldest.hash ? oldest.freed_at : 0;
}

void BlockPool::discard_oldest() {
    const BlockId block = take_oldest();
    blank_.push_front(index(block));
    ledger_->filled_bytes_ -= block_bytes_;
    ledger_->add({CacheEdit::Kind::discard, group_, index(block)});
}

void BlockPool::retain(BlockId block) {
    Block &retained = at(block);
    if (blank_.contains(index(block)))
        throw InternalError("block_pool", cat("block ", index(block), " is shared but has no contents"));
    if (retained.n_references++ > 0) return;
    unlist(block);
    ledger_->held_bytes_ += block_bytes_;
}

void BlockPool::release(BlockId block) {
    Block &freed = at(block);
    if (freed.n_references == 0)
        throw InternalError("block_pool", cat("block ", index(block), " is released but already free"));
    if (--freed.n_references > 0) return;
    ledger_->held_bytes_ -= block_bytes_;
    set_free(block);
}

void BlockPool::set_free(BlockId block) {
    Block &freed = at(block);
    freed.freed_at = ledger_->tick();
    if (!freed.hash) return cached_.push_front(index(block)); // nothing in it is worth keeping
    cached_.push_back(index(block));
    if (halves_) halves_->add(index(block));
}

void BlockPool::touch(BlockId block) {
    if (!cached_.contains(index(block))) return;
    unlist(block);
    set_free(block);
}

bool BlockPool::publish(BlockId block, const PrefixHash &hash) {
    Block &published = at(block);
    if (published.hash == hash) return true;
    if (published.n_references == 0)
        throw InternalError("block_pool", cat("block ", index(block), " is published but free"));
    if (published.hash) throw InternalError("block_pool", cat("block ", index(block), " already has another hash"));
    if (!by_hash_.try_emplace(hash, block).second) return false;
    published.hash = hash;
    // A snapshot may soon give way to the next one: its sequence offers those that stay.
    if (group_ != CacheEdit::states) ledger_->offer(group_, index(block), hash, TierOffer::published);
    return true;
}

void BlockPool::unpublish(BlockId block) {
    Block &hidden = at(block);
    if (!hidden.hash) return;
    by_hash_.erase(*hidden.hash);
    hidden.hash.reset();
    touch(block);
}

std::optional<BlockId> BlockPool::find(const PrefixHash &hash) const {
    const auto found = by_hash_.find(hash);
    return found == by_hash_.end() ? std::nullopt : std::optional(found->second);
}

void BlockPool::forget_published() {
    by_hash_.clear();
    for (Block &block : blocks_) block.hash.reset();
    if (halves_) halves_->clear();
}

std::vector<BlockId> BlockPool::free_blocks() const {
    std::vector<BlockId> blocks;
    const std::vector<int32_t> cached = cached_.in_order();
    const auto published = std::ranges::find_if(cached, [&](int32_t id) { return at(BlockId{id}).hash.has_value(); });
    for (auto id = cached.begin(); id != published; ++id) blocks.push_back(BlockId{*id});
    for (int32_t id : blank_.in_order()) blocks.push_back(BlockId{id});
    if (!halves_) {
        for (auto id = published; id != cached.end(); ++id) blocks.push_back(BlockId{*id});
        return blocks;
    }
    LruHalf halves = *halves_;
    int32_t last = blank_.size() > 0 ? blank_.in_order().back() : last_;
    for (auto id = halves.next_after(last); id; id = halves.next_after(last)) {
        halves.remove(last = *id);
        blocks.push_back(BlockId{last});
    }
    return blocks;
}

void BlockPool::check() const {
    require_of_block(blocks_[0].n_references == 0 && !blocks_[0].hash && !cached_.contains(0) && !blank_.contains(0),
                     "nobody may own the null block", 0);
    int32_t n_free = 0, n_published = 0;
    for (int32_t id = 1; id < n_blocks(); ++id) {
        const Block &block = blocks_[static_cast<size_t>(id)];
        require_of_block(block.n_references >= 0, "negative reference count", id);
        require_of_block((block.n_references == 0) == (cached_.contains(id) || blank_.contains(id)),
                         "listed although referenced, or free but not listed", id);
        require_of_block(!cached_.contains(id) || !blank_.contains(id), "on two lists", id);
        n_free += block.n_references == 0;
        if (!block.hash) continue;
        ++n_published;
        require_of_block(find(*block.hash) == BlockId{id}, "its hash names another block", id);
        require_of_block(!blank_.contains(id), "published without contents", id);
    }
    const size_t n_listed = cached_.in_order().size() + blank_.in_order().size();
    if (n_free != this->n_free() || static_cast<size_t>(n_free) != n_listed)
        throw InternalError("block_pool",
                            cat(n_free, " blocks are free, ", n_listed, " listed and ", this->n_free(), " counted"));
    if (static_cast<size_t>(n_published) != by_hash_.size())
        throw InternalError("block_pool",
                            cat(n_published, " blocks have a hash, ", by_hash_.size(), " hashes are known"));
    require_by_age();
    if (halves_) require_halves();
    ledger_->check();
}

// The oldest block of the pool must come first, or the ledger would compare the wrong ones.
void BlockPool::require_by_age() const {
    uint64_t before = 0;
    for (int32_t id : cached_.in_order()) {
        const Block &block = blocks_[static_cast<size_t>(id)];
        require_of_block(block.hash || before == 0, "a free block that nobody can find is not first", id);
        if (!block.hash) continue;
        require_of_block(block.freed_at > before, "published free blocks are not listed by age", id);
        before = block.freed_at;
    }
}

void BlockPool::require_halves() const {
    int32_t n_published = 0, n_older = 0;
    for (int32_t id : cached_.in_order()) {
        const bool is_published = blocks_[static_cast<size_t>(id)].hash.has_value();
        require_of_block(halves_->contains(id) == is_published, "free and published but in no half, or the reverse",
                         id);
        if (!is_published) continue;
        require_of_block(!halves_->is_older(id) || n_older == n_published,
                         "a newer block is in the less recently used half", id);
        ++n_published;
        n_older += halves_->is_older(id);
    }
    if (halves_->size() != n_published || n_published > 2 * n_older)
        throw InternalError("block_pool",
                            cat("the less recently used half has ", n_older, " of ", n_published, " blocks"));
}

} // namespace quire
