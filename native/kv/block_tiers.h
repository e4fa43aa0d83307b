// Tiers below the block pool: contents of blocks and snapshots, kept by name in memory of the host and on disk.
//
// Interfaces only, without a thread or a clock, so that the scheduler can use them; cache_tiers.h implements them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kv/prefix_hash.h"

namespace quire {

// A block of a group, or a snapshot (CacheEdit::states), by what it contains.
struct TierKey {
    int group;
    PrefixHash name;
    bool operator==(const TierKey &) const = default;
};

struct TierKeyHasher {
    size_t operator()(const TierKey &key) const {
        return PrefixHashHasher{}(key.name) + static_cast<size_t>(key.group) * 0x9e3779b97f4a7c15;
    }
};

using TierKeys = std::unordered_set<TierKey, TierKeyHasher>;

// Bytes that nobody changes any more.
class TierData {
  public:
    TierData() = default;
    explicit TierData(size_t size_bytes) : bytes_(new uint8_t[size_bytes]), size_bytes_(size_bytes) {}
    TierData(std::shared_ptr<uint8_t[]> bytes, size_t size_bytes) : bytes_(std::move(bytes)), size_bytes_(size_bytes) {}
    explicit operator bool() const { return bytes_ != nullptr; }
    const uint8_t *data() const { return bytes_.get(); }
    uint8_t *fill() { return bytes_.get(); } // before it is shared
    size_t size_bytes() const { return size_bytes_; }

  private:
    std::shared_ptr<uint8_t[]> bytes_;
    size_t size_bytes_ = 0;
};

enum class TierKind { host, disk };

struct TierEntry {
    TierKey key;
    TierData data;
    TierKind from;
};

// Entries on their way to the pool.  Its end gives up what has not been read.
class TierFetch {
  public:
    virtual ~TierFetch() = default;
    // Entries that have arrived, about most_bytes of them; each once, in any order.
    virtual std::vector<TierEntry> take(size_t most_bytes) = 0;
    virtual bool is_done() const = 0; // all that could be read has been taken
};

// Why the contents of a block are offered.
enum class TierOffer {
    published, // it was computed, and stays in the pool
    evicted,   // the pool needs its memory
};

class BlockTiers {
  public:
    virtual ~BlockTiers() = default;
    // True if put() would keep it.  Quick: nothing is read from a disk.
    virtual bool wants(const TierKey &key, TierOffer offer) = 0;
    // Keeps it or drops it; never waits for a disk.
    virtual void put(const TierKey &key, TierData data, TierOffer offer) = 0;
    virtual bool has(const TierKey &key) = 0;
    // True if reading takes less time than computing so many tokens, as far as that is known.
    virtual bool is_worth_reading(std::span<const TierKey> keys, int64_t n_tokens) = 0;
    virtual std::unique_ptr<TierFetch> fetch(std::vector<TierKey> keys) = 0;
};

} // namespace quire
