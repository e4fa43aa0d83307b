#include "kv/pinned_prefixes.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace quire {

PinnedPrefixes::Pinned PinnedPrefixes::add(const SequenceCache::Names &names, const CacheMatch &match) {
    Pin pin{PinId{n_made_ + 1}, {}, {}};
    for (size_t i = 0; i < pool_->n_groups(); ++i) {
        pin.tables.emplace_back(pool_->group(i));
        pin.tables.back().take(pool_->lifetime(i).of_source ? names.source : names.text, match.groups[i]);
    }
    const auto n_blocks = static_cast<size_t>(match.n_tokens / pool_->block_tokens());
    if (pool_->has_states() && n_blocks > 0)
        if (const auto slot = pool_->states().find(names.text[n_blocks - 1])) pin.state.push_back(*slot);
    size_t more_bytes = 0;
    for_blocks(pin, [&](size_t group, BlockId block) {
        if (!counts_[group].contains(index(block))) more_bytes += pool(group).block_bytes();
    });
    if (held_bytes_ + more_bytes > most_bytes_) // its tables give their blocks back
        throw CapacityError("pin", cat("pinning ", match.n_tokens, " tokens takes ", more_bytes,
                                       " bytes of the cache: ", most_bytes_ - held_bytes_, " of ", most_bytes_,
                                       " for pinned prefixes are left (unpin others)"));
    for (BlockId slot : pin.state) pool_->states().retain(slot);
    for_blocks(pin, [&](size_t group, BlockId block) { ++counts_[group][index(block)]; });
    held_bytes_ += more_bytes;
    pins_.push_back(std::move(pin));
    return {PinId{++n_made_}, match.n_tokens};
}

void PinnedPrefixes::let_go(Pin &pin) {
    for_blocks(pin, [&](size_t group, BlockId block) {
        const auto count = counts_[group].find(index(block));
        if (--count->second > 0) return;
        counts_[group].erase(count);
        held_bytes_ -= pool(group).block_bytes();
    });
    for (BlockId slot : pin.state) pool_->states().release(slot);
    for (BlockTable &table : pin.tables) table.release();
}

void PinnedPrefixes::remove(PinId id) {
    const auto pin = std::ranges::find(pins_, id, &Pin::id);
    if (pin == pins_.end()) return;
    let_go(*pin);
    pins_.erase(pin);
}

void PinnedPrefixes::clear() {
    for (Pin &pin : pins_) let_go(pin);
    pins_.clear();
}

bool PinnedPrefixes::give_way() {
    if (pins_.empty()) return false;
    let_go(pins_.front());
    pins_.pop_front();
    ++n_given_way_;
    return true;
}

} // namespace quire
