#include "kv/block_table.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace quire {

BlockTable::~BlockTable() {
    try {
        release();
    } catch (const Error &) { // someone else released a block of ours: the pool's check() tells
    }
}

BlockTable &BlockTable::operator=(BlockTable &&other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(blocks_, other.blocks_);
    std::swap(n_offered_, other.n_offered_);
    std::swap(n_dropped_, other.n_dropped_);
    return *this;
}

size_t BlockTable::block_index(int64_t position) const {
    const int64_t n_positions = int64_t{n_blocks()} * pool_->block_tokens();
    const int64_t first = int64_t{n_dropped()} * pool_->block_tokens();
    if (position < first || position >= n_positions)
        throw ShapeError("block_table",
                         cat("position ", position, " is out of range: expected ", first, " to ", n_positions - 1));
    return static_cast<size_t>(position / pool_->block_tokens());
}

int32_t BlockTable::slot(int64_t position) const {
    const int block_tokens = pool_->block_tokens();
    return index(blocks_[block_index(position)]) * block_tokens + static_cast<int32_t>(position % block_tokens);
}

PrefixMatch BlockTable::match(std::span<const PrefixHash> hashes, int64_t max_tokens) const {
    PrefixMatch match;
    const int64_t max_blocks = std::min(static_cast<int64_t>(hashes.size()), max_tokens / pool_->block_tokens());
    for (; match.n_blocks < max_blocks; ++match.n_blocks) {
        const auto block = pool_->find(hashes[static_cast<size_t>(match.n_blocks)]);
        if (!block) break;
        match.n_free_blocks += pool_->is_free(*block);
    }
    match.n_tokens = int64_t{match.n_blocks} * pool_->block_tokens();
    return match;
}

void BlockTable::take(std::span<const PrefixHash> hashes, const PrefixMatch &match) {
    if (!blocks_.empty())
        throw InternalError("block_table", cat("cannot take a prefix: the table already has ", n_blocks(), " blocks"));
    blocks_.reserve(static_cast<size_t>(match.n_blocks));
    n_dropped_ = static_cast<size_t>(match.first_block);
    blocks_.resize(n_dropped_, BlockId::null);
    for (int32_t i = match.first_block; i < match.n_blocks; ++i) {
        const auto block = pool_->find(hashes[static_cast<size_t>(i)]);
        if (!block) throw InternalError("block_table", "a block of a matched prefix is gone from the pool");
        pool_->retain(*block);
        blocks_.push_back(*block);
    }
    n_offered_ = blocks_.size();
}

int32_t BlockTable::blocks_needed(int64_t begin, int64_t end) const {
    if (begin >= end) return 0;
    const auto first = static_cast<size_t>(begin / pool_->block_tokens());
    const bool copies = first < blocks_.size() && pool_->n_references(blocks_[first]) > 1;
    return static_cast<int32_t>(std::max<int64_t>(0, pool_->blocks_for_tokens(end) - n_blocks())) + copies;
}

void BlockTable::reserve(int64_t n_tokens) {
    const int64_t n_new = pool_->blocks_for_tokens(n_tokens) - n_blocks();
    if (n_new > pool_->n_available())
        throw CapacityError("block_table",
                            cat("the pool has ", pool_->n_available(), " free blocks: expected ", n_new));
    for (int64_t i = 0; i < n_new; ++i) blocks_.push_back(*pool_->allocate());
}

std::optional<BlockCopy> BlockTable::ensure_writable(int64_t position) {
    const size_t at = block_index(position);
    BlockId &block = blocks_[at];
    if (pool_->n_references(block) == 1) {
        pool_->unpublish(block);
        n_offered_ = std::min(n_offered_, at);
        return std::nullopt;
    }
    const auto copy = pool_->allocate();
    if (!copy) throw CapacityError("block_table", "no free block for copy on write");
    pool_->release(block);
    n_offered_ = std::min(n_offered_, at);
    return BlockCopy{std::exchange(block, *copy), *copy};
}

void BlockTable::publish(std::span<const PrefixHash> hashes) {
    if (hashes.size() > blocks_.size())
        throw InternalError("block_table",
                            cat("cannot publish ", hashes.size(), " blocks: the table has ", n_blocks()));
    for (; n_offered_ < hashes.size(); ++n_offered_) pool_->publish(blocks_[n_offered_], hashes[n_offered_]);
}

BlockTable BlockTable::fork() const {
    BlockTable copy(pool_);
    copy.n_offered_ = n_offered_;
    copy.n_dropped_ = n_dropped_;
    copy.blocks_.reserve(blocks_.size());
    for (BlockId block : blocks_) {
        if (block != BlockId::null) pool_->retain(block);
        copy.blocks_.push_back(block);
    }
    return copy;
}

void BlockTable::drop(int32_t n_blocks) {
    for (; n_dropped() < std::min(n_blocks, this->n_blocks()); ++n_dropped_)
        pool_->release(std::exchange(blocks_[n_dropped_], BlockId::null));
    n_offered_ = std::max(n_offered_, n_dropped_);
}

void BlockTable::pop() {
    const BlockId last = blocks_.back();
    blocks_.pop_back();
    n_dropped_ = std::min(n_dropped_, blocks_.size());
    n_offered_ = std::min(n_offered_, blocks_.size());
    if (last != BlockId::null) pool_->release(last);
}

void BlockTable::release() {
    while (!blocks_.empty()) pop();
}

} // namespace quire
