// Blocks and snapshots in memory of the host.
#pragma once

#include <functional>
#include <list>
#include <mutex>
#include <unordered_map>

#include "kv/cache_tier.h"

namespace quire {

class HostTier : public CacheTier {
  public:
    // `evicted` gets what no longer fits.
    explicit HostTier(size_t budget_bytes, std::function<void(TierKey, TierData)> evicted = {});
    TierKind kind() const override { return TierKind::host; }
    bool is_known(const TierKey &key) const override;
    bool has(const TierKey &key) override { return is_known(key); }
    TierData get(const TierKey &key) override;
    void put(const TierKey &key, const TierData &data) override;
    void touch(const TierKey &key) override;
    TierStats stats() const override;

  private:
    struct Entry {
        TierKey key;
        TierData data;
    };
    const size_t budget_bytes_;
    const std::function<void(TierKey, TierData)> evicted_;
    mutable std::mutex mutex_;
    std::list<Entry> by_age_; // the least recently used one first
    std::unordered_map<TierKey, std::list<Entry>::iterator, TierKeyHasher> by_key_;
    TierStats stats_;
};

} // namespace quire
