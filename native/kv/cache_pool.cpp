#include "kv/cache_pool.h"

#include <algorithm>

#include "core/error.h"

namespace quire {

CacheNeed &CacheNeed::operator+=(const CacheNeed &other) {
    blocks.resize(std::max(blocks.size(), other.blocks.size()));
    for (size_t i = 0; i < other.blocks.size(); ++i) blocks[i] += other.blocks[i];
    states += other.states;
    return *this;
}

CachePool::CachePool(CachePoolSpec spec)
    : spec_(std::move(spec)), ledger_(std::make_shared<CacheLedger>(spec_.budget_bytes)) {
    if (spec_.block_tokens < 1)
        throw ShapeError("cache_pool", cat("block_tokens is ", spec_.block_tokens, ": expected a positive number"));
    for (const CachePoolSpec::Group &group : spec_.groups)
        groups_.push_back(std::make_shared<BlockPool>(group.n_blocks, spec_.block_tokens, group.block_bytes, ledger_,
                                                      static_cast<int>(groups_.size()), spec_.reuse));
    if (spec_.state_bytes > 0)
        states_ = std::make_shared<BlockPool>(spec_.n_states, 1, spec_.state_bytes, ledger_, CacheEdit::states);
}

bool CachePool::has_source() const {
    return std::ranges::any_of(spec_.groups, [](const auto &group) { return group.lifetime.of_source; });
}

bool CachePool::has_bidirectional_media() const {
    return std::ranges::any_of(spec_.groups, [](const auto &group) { return group.lifetime.bidirectional_media; });
}

int64_t CachePool::most_blocks(size_t group, int64_t n_tokens, int64_t step_tokens) const {
    const CacheLifetime &lifetime = spec_.groups[group].lifetime;
    const int64_t all = blocks_for_tokens(n_tokens);
    const int64_t reach = lifetime.chunk > 0 ? lifetime.chunk : lifetime.window;
    if (reach == 0) return all;
    // Blocks for the end of the last whole block, a partial block, and a step; the first token may lie anywhere in a
    // block.
    const int64_t span = (reach - 1) + (block_tokens() - 1) + step_tokens;
    return std::min(all, (span + block_tokens() - 2) / block_tokens() + 1);
}

CacheNeed CachePool::most_needed(int64_t n_tokens, int64_t step_tokens, int64_t n_source) const {
    CacheNeed need{std::vector<int64_t>(n_groups()), has_states()};
    for (size_t i = 0; i < n_groups(); ++i)
        need.blocks[i] = lifetime(i).of_source ? blocks_for_tokens(n_source) : most_blocks(i, n_tokens, step_tokens);
    return need;
}

size_t CachePool::bytes(const CacheNeed &need) const {
    size_t sum = static_cast<size_t>(need.states) * spec_.state_bytes;
    for (size_t i = 0; i < need.blocks.size(); ++i)
        sum += static_cast<size_t>(need.blocks[i]) * spec_.groups[i].block_bytes;
    return sum;
}

bool CachePool::can_hold(const CacheNeed &need) const {
    for (size_t i = 0; i < need.blocks.size(); ++i)
        if (need.blocks[i] > groups_[i]->n_usable()) return false;
    return (!has_states() || need.states <= states_->n_usable()) && bytes(need) <= spec_.budget_bytes;
}

bool CachePool::has_room(const CacheNeed &need) const {
    for (size_t i = 0; i < need.blocks.size(); ++i)
        if (need.blocks[i] > groups_[i]->n_free()) return false;
    return (!has_states() || need.states <= states_->n_free()) && bytes(need) <= ledger_->available_bytes();
}

CacheStats CachePool::stats() const {
    const auto bytes_of = [](const BlockPool &pool) {
        const auto n_cached = static_cast<size_t>(pool.n_free() - pool.n_blank());
        return CacheStats::Kind{static_cast<size_t>(pool.n_referenced()) * pool.block_bytes(),
                                n_cached * pool.block_bytes()};
    };
    CacheStats stats;
    stats.budget_bytes = spec_.budget_bytes;
    stats.held_bytes = ledger_->held_bytes();
    for (const auto &group : groups_) {
        stats.groups.push_back(bytes_of(*group));
        stats.unit_bytes += group->block_bytes();
    }
    if (groups_.empty()) stats.unit_bytes = spec_.state_bytes;
    if (!states_) return stats;
    stats.states = bytes_of(*states_);
    stats.n_snapshots = states_->n_published();
    return stats;
}

bool CachePool::load(const TierEntry &entry) {
    BlockPool &pool = pool_of(entry.key.group);
    if (pool.find(entry.key.name)) return false;
    const auto block = pool.allocate();
    if (!block) return false;
    ledger_->add({CacheEdit::Kind::load, entry.key.group, 0, index(*block), entry.key.name, {}, entry.data});
    pool.publish(*block, entry.key.name);
    pool.release(*block);
    return true;
}

void CachePool::forget_published() {
    for (const auto &group : groups_) group->forget_published();
    if (states_) states_->forget_published();
}

void CachePool::check() const {
    for (const auto &group : groups_) group->check();
    if (states_) states_->check();
}

} // namespace quire
