#include "kv/sequence_cache.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/error.h"

namespace quire {

SequenceCache::SequenceCache(std::shared_ptr<CachePool> pool, int64_t step_tokens)
    : pool_(std::move(pool)), step_tokens_(step_tokens) {
    tables_.reserve(pool_->n_groups());
    for (size_t i = 0; i < pool_->n_groups(); ++i) tables_.emplace_back(pool_->group(i));
}

SequenceCache::~SequenceCache() {
    try {
        release();
    } catch (const Error &) { // someone else released our block; the pool's check() reports it
    }
}

SequenceCache &SequenceCache::operator=(SequenceCache &&other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(step_tokens_, other.step_tokens_);
    std::swap(tables_, other.tables_);
    std::swap(state_, other.state_);
    std::swap(kept_state_, other.kept_state_);
    std::swap(snapshots_, other.snapshots_);
    return *this;
}

bool SequenceCache::empty() const {
    return !state_ && !kept_state_ &&
           std::ranges::all_of(tables_, [](const BlockTable &table) { return table.n_blocks() == 0; });
}

// The first block that the token after n_blocks blocks needs.
int64_t SequenceCache::first_needed(size_t group, int64_t n_blocks) const {
    return pool_->lifetime(group).first_seen(n_blocks * pool_->block_tokens()) / pool_->block_tokens();
}

// The last block that is missing, among those that a group needs for a prefix of n_blocks.
std::optional<int64_t> SequenceCache::last_missing(size_t group, std::span<const PrefixHash> hashes, int64_t n_blocks,
                                                   const Has &has) const {
    for (int64_t i = n_blocks - 1; i >= first_needed(group, n_blocks); --i)
        if (!has({static_cast<int>(group), hashes[static_cast<size_t>(i)]})) return i;
    return std::nullopt;
}

// Blocks of the longest prefix, of at most n_blocks, for which every group has what it needs and there is a snapshot.
int64_t SequenceCache::fitting_prefix(std::span<const PrefixHash> hashes, int64_t n_blocks, const Has &has) const {
    const auto lacks_state = [&] {
        return pool_->has_states() && !has({CacheEdit::states, hashes[static_cast<size_t>(n_blocks) - 1]});
    };
    const auto missing = [&]() -> std::optional<int64_t> {
        for (size_t i = 0; i < tables_.size(); ++i) {
            const auto block = is_source(i) ? std::nullopt : last_missing(i, hashes, n_blocks, has);
            if (block) return block;
        }
        return std::nullopt;
    };
    while (n_blocks > 0) {
        if (lacks_state())
            --n_blocks;
        else if (const auto block = missing())
            n_blocks = *block;
        else
            break;
    }
    return n_blocks;
}

// All of it or nothing: rows of an encoder cannot be computed apart.
void SequenceCache::match_source(size_t group, std::span<const PrefixHash> source, CacheMatch &match) const {
    const BlockPool &pool = *pool_->group(group);
    match.has_source = !source.empty();
    for (const PrefixHash &name : source) match.has_source = match.has_source && pool.find(name);
    if (!match.has_source) return;
    PrefixMatch &found = match.groups[group];
    found.n_blocks = static_cast<int32_t>(source.size());
    found.n_tokens = int64_t{found.n_blocks} * pool_->block_tokens();
    for (const PrefixHash &name : source) found.n_free_blocks += pool.is_free(*pool.find(name));
}

CacheMatch SequenceCache::match(const Names &names, int64_t max_tokens) const {
    const std::span<const PrefixHash> hashes = names.text;
    CacheMatch match;
    match.groups.resize(tables_.size());
    if (pool_->keeps_nothing()) return match;
    int64_t n_blocks = std::min(static_cast<int64_t>(hashes.size()), max_tokens / pool_->block_tokens());
    bool rows_tell = false; // true if a group that needs every block limits the prefix
    for (size_t i = 0; i < tables_.size(); ++i) {
        if (!pool_->lifetime(i).keeps_all()) continue;
        n_blocks = tables_[i].match(hashes, n_blocks * pool_->block_tokens()).n_blocks;
        rows_tell = true;
    }
    const int64_t n_fitting = fitting_prefix(hashes, n_blocks, [this](const TierKey &key) { return pool_->has(key); });
    match.n_tokens = n_fitting * pool_->block_tokens();
    match.n_lost_tokens = rows_tell ? (n_blocks - n_fitting) * pool_->block_tokens() : 0;
    for (size_t i = 0; i < tables_.size(); ++i) {
        if (is_source(i)) {
            match_source(i, names.source, match);
            continue;
        }
        PrefixMatch &group = match.groups[i];
        group = {match.n_tokens, static_cast<int32_t>(n_fitting), static_cast<int32_t>(first_needed(i, n_fitting)), 0};
        for (int32_t block = group.first_block; block < group.n_blocks; ++block)
            group.n_free_blocks += pool_->group(i)->is_free(*pool_->group(i)->find(hashes[static_cast<size_t>(block)]));
    }
    return match;
}

// The end of a group's table that is reserved for computing n_tokens, when the first block it has is first_block.  As a
// window or chunk moves, what it drops makes room for what it needs next.
int64_t SequenceCache::blocks_ahead(size_t group, int64_t first_block, int64_t n_tokens) const {
    const int64_t all = pool_->blocks_for_tokens(n_tokens);
    return std::min(all, first_block + pool_->most_blocks(group, n_tokens, step_tokens_));
}

bool SequenceCache::has_room_for(const Names &names, const CacheMatch &match, int64_t n_tokens,
                                 int64_t n_kept_back) const {
    CacheNeed need{std::vector<int64_t>(tables_.size()), pool_->has_states()};
    for (size_t i = 0; i < tables_.size(); ++i) {
        const PrefixMatch &group = match.groups[i];
        if (is_source(i)) {
            need.blocks[i] = static_cast<int64_t>(names.source.size()) - group.n_blocks + group.n_free_blocks;
            continue;
        }
        const int64_t n_new = blocks_ahead(i, group.first_block, n_tokens) - group.n_blocks;
        need.blocks[i] = n_new + group.n_free_blocks + n_kept_back;
    }
    return pool_->has_room(need);
}

void SequenceCache::take(const Names &names, const CacheMatch &match, int64_t n_tokens) {
    const std::span<const PrefixHash> hashes = names.text;
    if (!empty()) throw InternalError("sequence_cache", "cannot take a prefix: the cache has contents");
    for (size_t i = 0; i < tables_.size(); ++i) tables_[i].take(is_source(i) ? names.source : hashes, match.groups[i]);
    if (pool_->has_states()) take_state(hashes, match);
    for (size_t i = 0; i < tables_.size(); ++i) {
        const int64_t n_blocks = is_source(i) ? static_cast<int64_t>(names.source.size())
                                              : blocks_ahead(i, tables_[i].n_dropped(), n_tokens);
        tables_[i].reserve(n_blocks * pool_->block_tokens());
    }
}

void SequenceCache::publish_source(std::span<const PrefixHash> source) {
    for (size_t i = 0; i < tables_.size(); ++i)
        if (is_source(i)) tables_[i].publish(source);
}

void SequenceCache::take_state(std::span<const PrefixHash> hashes, const CacheMatch &match) {
    BlockPool &states = pool_->states();
    const auto n_blocks = static_cast<size_t>(match.n_tokens / pool_->block_tokens());
    const auto found = n_blocks > 0 ? states.find(hashes[n_blocks - 1]) : std::nullopt;
    if (found) states.retain(*found); // not to be evicted for its own copy
    state_ = states.allocate();
    if (!state_ && found) { // no room for both: the snapshot becomes the private state
        states.unpublish(*found);
        state_ = found;
        return;
    }
    if (!state_) throw CapacityError("sequence_cache", "no free slot for the state of a sequence");
    pool_->copy(CacheEdit::states, found.value_or(BlockId::null), *state_);
    if (!found) return;
    states.release(*found);
    snapshots_.push_back({*found, hashes[n_blocks - 1], static_cast<int32_t>(n_blocks), SnapshotKind::message});
}

bool SequenceCache::has_room_to_write(int64_t begin, int64_t end, int64_t n_kept_back) const {
    size_t bytes = 0;
    for (size_t i = 0; i < tables_.size(); ++i) {
        const BlockTable &table = tables_[i];
        const int64_t n = is_source(i) ? 0 : table.blocks_needed(begin, end);
        if (n == 0) continue;
        if (n + n_kept_back > table.pool()->n_free()) return false;
        bytes += static_cast<size_t>(n + n_kept_back) * table.pool()->block_bytes();
    }
    return bytes <= pool_->ledger().available_bytes();
}

void SequenceCache::prepare(int64_t begin, int64_t end) {
    for (size_t i = 0; i < tables_.size(); ++i) {
        if (is_source(i)) continue;
        BlockTable &table = tables_[i];
        if (begin < int64_t{table.n_blocks()} * pool_->block_tokens())
            if (const auto copy = table.ensure_writable(begin)) pool_->copy(static_cast<int>(i), copy->from, copy->to);
        table.reserve(end);
    }
}

void SequenceCache::advance(std::span<const PrefixHash> hashes, int64_t n_computed, int64_t n_tokens) {
    for (size_t i = 0; i < tables_.size(); ++i) {
        if (is_source(i)) continue;
        BlockTable &table = tables_[i];
        table.publish(hashes);
        if (pool_->lifetime(i).keeps_all()) continue;
        table.drop(static_cast<int32_t>(first_needed(i, n_computed / pool_->block_tokens())));
        // Dropped blocks that others share make no room; then the next step has to find it.
        const int64_t ahead = blocks_ahead(i, table.n_dropped(), n_tokens);
        if (ahead - table.n_blocks() <= table.pool()->n_available()) table.reserve(ahead * pool_->block_tokens());
    }
}

bool SequenceCache::is_there(const Snapshot &snapshot) const {
    return pool_->states().hash(snapshot.slot) == snapshot.hash;
}

void SequenceCache::drop_rolling() {
    if (snapshots_.empty() || snapshots_.back().kind != SnapshotKind::rolling) return;
    if (is_there(snapshots_.back())) pool_->states().unpublish(snapshots_.back().slot);
    snapshots_.pop_back();
}

void SequenceCache::snapshot(std::span<const PrefixHash> hashes, SnapshotKind kind) {
    if (!pool_->has_states()) return;
    if (!state_) throw InternalError("sequence_cache", "cannot take a snapshot: the cache has no state");
    drop_rolling();
    BlockPool &states = pool_->states();
    const PrefixHash &hash = hashes.back();
    const auto n_blocks = static_cast<int32_t>(hashes.size());
    if (const auto known = states.find(hash)) { // taken by another sequence, or before a preemption
        snapshots_.push_back({*known, hash, n_blocks, kind == SnapshotKind::rolling ? SnapshotKind::message : kind});
        return;
    }
    const auto slot = states.allocate();
    if (!slot) return;
    pool_->copy(CacheEdit::states, *state_, *slot);
    states.publish(*slot, hash);
    states.release(*slot);
    if (kind != SnapshotKind::rolling) pool_->offer_state(*slot, hash);
    snapshots_.push_back({*slot, hash, n_blocks, kind});
}

void SequenceCache::keep_state() {
    drop_kept_state();
    if (!state_) return;
    kept_state_ = pool_->states().allocate();
    if (!kept_state_) throw CapacityError("sequence_cache", "no free slot for the copy of a state");
    pool_->copy(CacheEdit::states, *state_, *kept_state_);
}

void SequenceCache::drop_kept_state() {
    if (kept_state_) pool_->states().release(*std::exchange(kept_state_, std::nullopt));
}

bool SequenceCache::restore_state() {
    if (!kept_state_) return false;
    std::swap(state_, kept_state_);
    drop_kept_state();
    return true;
}

bool SequenceCache::cut_back(int64_t n_computed) {
    const int64_t block_tokens = pool_->block_tokens();
    for (size_t i = 0; i < tables_.size(); ++i)
        if (tables_[i].n_dropped() > pool_->lifetime(i).first_seen(n_computed) / block_tokens) return false;
    for (size_t i = 0; i < tables_.size(); ++i)
        while (!is_source(i) && tables_[i].n_blocks() > pool_->blocks_for_tokens(n_computed)) tables_[i].pop();
    return true;
}

void SequenceCache::cut(int64_t n_tokens) {
    for (size_t i = 0; i < tables_.size(); ++i) {
        const int64_t wanted = blocks_ahead(i, tables_[i].n_dropped(), n_tokens);
        while (!is_source(i) && tables_[i].n_blocks() > wanted) tables_[i].pop();
    }
}

bool SequenceCache::can_fork() const { return !pool_->has_states() || pool_->states().n_available() > 0; }

SequenceCache SequenceCache::fork() const {
    SequenceCache copy(pool_, step_tokens_);
    for (size_t i = 0; i < tables_.size(); ++i) copy.tables_[i] = tables_[i].fork();
    if (!state_) return copy;
    copy.state_ = pool_->states().allocate();
    if (!copy.state_) throw CapacityError("sequence_cache", "no free slot for the state of a choice");
    pool_->copy(CacheEdit::states, *state_, *copy.state_);
    copy.snapshots_ = snapshots_;
    for (Snapshot &shared : copy.snapshots_) // dropping it is the other's business
        if (shared.kind == SnapshotKind::rolling) shared.kind = SnapshotKind::message;
    return copy;
}

// The last one, and those at messages, are as recently used as the blocks beside them.
void SequenceCache::release_snapshot() {
    const bool renew = snapshots_.back().kind != SnapshotKind::spaced;
    if (renew && is_there(snapshots_.back())) pool_->states().touch(snapshots_.back().slot);
    snapshots_.pop_back();
}

void SequenceCache::release() {
    int32_t n_blocks = 0;
    if (!snapshots_.empty()) {
        Snapshot &last = snapshots_.back();
        n_blocks = last.n_blocks;
        if (last.kind == SnapshotKind::rolling && is_there(last)) pool_->offer_state(last.slot, last.hash);
        last.kind = SnapshotKind::message;
    }
    for (const BlockTable &table : tables_) n_blocks = std::max(n_blocks, table.n_blocks());
    for (; n_blocks > 0; --n_blocks) {
        for (BlockTable &table : tables_)
            if (table.n_blocks() == n_blocks) table.pop();
        while (!snapshots_.empty() && snapshots_.back().n_blocks == n_blocks) release_snapshot();
    }
    drop_kept_state();
    if (state_) pool_->states().release(*std::exchange(state_, std::nullopt));
}

} // namespace quire
