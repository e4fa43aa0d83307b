#include "kv/host_tier.h"

#include <utility>

namespace quire {

HostTier::HostTier(size_t budget_bytes, std::function<void(TierKey, TierData)> evicted)
    : budget_bytes_(budget_bytes), evicted_(std::move(evicted)) {
    stats_.budget_bytes = budget_bytes;
}

bool HostTier::is_known(const TierKey &key) const {
    std::lock_guard lock(mutex_);
    return by_key_.contains(key);
}

TierData HostTier::get(const TierKey &key) {
    std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found == by_key_.end()) return {};
    by_age_.splice(by_age_.end(), by_age_, found->second);
    ++stats_.n_read;
    stats_.read_bytes += static_cast<int64_t>(found->second->data.size_bytes());
    return found->second->data;
}

void HostTier::touch(const TierKey &key) {
    std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) by_age_.splice(by_age_.end(), by_age_, found->second);
}

void HostTier::put(const TierKey &key, const TierData &data) {
    std::vector<Entry> evicted;
    {
        std::lock_guard lock(mutex_);
        if (data.size_bytes() > budget_bytes_) {
            ++stats_.n_dropped;
            return;
        }
        if (by_key_.contains(key)) return;
        while (stats_.used_bytes + data.size_bytes() > budget_bytes_) {
            Entry &oldest = by_age_.front();
            stats_.used_bytes -= oldest.data.size_bytes();
            ++stats_.n_evicted;
            by_key_.erase(oldest.key);
            evicted.push_back(std::move(oldest));
            by_age_.pop_front();
        }
        by_age_.push_back({key, data});
        by_key_.emplace(key, std::prev(by_age_.end()));
        stats_.used_bytes += data.size_bytes();
        ++stats_.n_written;
        stats_.written_bytes += static_cast<int64_t>(data.size_bytes());
    }
    if (evicted_)
        for (Entry &entry : evicted) evicted_(entry.key, std::move(entry.data));
}

TierStats HostTier::stats() const {
    std::lock_guard lock(mutex_);
    TierStats stats = stats_;
    stats.n_entries = static_cast<int64_t>(by_key_.size());
    return stats;
}

} // namespace quire
