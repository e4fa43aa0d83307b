#include "kv/cache_ledger.h"

#include "core/error.h"
#include "kv/block_pool.h"

namespace quire {

bool CacheLedger::claim_blank(BlockPool &pool) {
    if (pool.n_blank() == 0 || pool.block_bytes() > available_bytes()) return false;
    while (filled_bytes_ + pool.block_bytes() > size_bytes_) {
        BlockPool *oldest = nullptr;
        for (BlockPool *other : pools_)
            if (other->oldest_cached_at() && (!oldest || *other->oldest_cached_at() < *oldest->oldest_cached_at()))
                oldest = other;
        if (!oldest) throw InternalError("cache_ledger", "nothing to evict, although more bytes are filled than held");
        if (oldest == &pool) return false;
        oldest->discard_oldest();
    }
    filled_bytes_ += pool.block_bytes();
    return true;
}

void CacheLedger::check() const {
    size_t held = 0, filled = 0;
    for (const BlockPool *pool : pools_) {
        held += static_cast<size_t>(pool->n_referenced()) * pool->block_bytes();
        filled += static_cast<size_t>(pool->n_usable() - pool->n_blank()) * pool->block_bytes();
    }
    if (held != held_bytes_ || filled != filled_bytes_)
        throw InternalError("cache_ledger", cat("the ledger counts ", held_bytes_, " bytes held and ", filled_bytes_,
                                                " filled: the pools have ", held, " and ", filled));
    if (filled > size_bytes_)
        throw InternalError("cache_ledger", cat("contents take ", filled, " bytes: expected at most ", size_bytes_));
}

} // namespace quire
