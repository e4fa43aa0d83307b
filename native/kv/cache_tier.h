// One tier of cache_tiers.h.
#pragma once

#include <cstdint>

#include "kv/block_tiers.h"

namespace quire {

struct TierStats {
    size_t budget_bytes = 0, used_bytes = 0; // used ones of a disk: of all models, as far as this process knows
    int64_t n_entries = 0;                   // that this process knows
    int64_t n_written = 0, n_read = 0;       // entries
    int64_t n_dropped = 0;                   // found no room: in the queue, or on the disk
    int64_t n_damaged = 0;                   // were not what their names said
    int64_t n_evicted = 0;
    int64_t written_bytes = 0, read_bytes = 0;
};

// Thread-safe.  Calls may take as long as the medium takes.
class CacheTier {
  public:
    virtual ~CacheTier() = default;
    virtual TierKind kind() const = 0;
    // As far as it is known without asking the medium: nothing is lost if it is wrong.
    virtual bool is_known(const TierKey &key) const = 0;
    virtual bool has(const TierKey &key) = 0;
    virtual TierData get(const TierKey &key) = 0; // no data: a miss
    virtual void put(const TierKey &key, const TierData &data) = 0;
    virtual void touch(const TierKey &key) = 0; // it was used now
    virtual TierStats stats() const = 0;
};

} // namespace quire
