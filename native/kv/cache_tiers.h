// The tiers below the block pool: memory of the host, then the disk.  What one evicts goes to the next.
//
// Nothing here waits for a disk on the caller's thread, but for has(), which may look for a file.  Contents are written
// behind by a thread of their own, from a queue of limited bytes: what finds no room there is dropped, and is offered
// again when the pool evicts it.  Fetches are read by threads of their own, with limited bytes on their way.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "kv/disk_tier.h"
#include "kv/host_tier.h"

namespace quire {

struct CacheTiersConfig {
    uint64_t ram_bytes = 0; // 0: no such tier
    std::string disk_folder; // empty: no such tier
    uint64_t disk_bytes = 0;
    std::string model; // as for tier_identity()
    bool always_reads = false; // also where computing is faster, for tests
    bool is_used() const { return ram_bytes > 0 || !disk_folder.empty(); }
};

struct CacheTiersStats {
    std::vector<TierStats> tiers;
    std::vector<TierKind> kinds;
    size_t queued_bytes = 0; // to be written
    int64_t n_refused = 0; // prefixes that were not read because computing them is faster
    double read_bytes_per_s = 0, compute_tokens_per_s = 0; // 0: not known yet
};

class CacheTiers : public BlockTiers {
  public:
    // LoadError where the disk's folder cannot be used.
    CacheTiers(const CacheTiersConfig &config, const CacheLayout &layout);
    ~CacheTiers() override { close(); }
    CacheTiers(const CacheTiers &) = delete;
    CacheTiers &operator=(const CacheTiers &) = delete;

    bool wants(const TierKey &key, TierOffer offer) override;
    void put(const TierKey &key, TierData data, TierOffer offer) override;
    bool has(const TierKey &key) override;
    bool is_worth_reading(std::span<const TierKey> keys, int64_t n_tokens) override;
    std::unique_ptr<TierFetch> fetch(std::vector<TierKey> keys) override;

    TierData get(const TierKey &key); // waits for the disk
    // Keeps an entry that a peer has computed.  False: there is no room for now.
    bool keep(const TierEntry &entry);
    // Called on a thread of a fetch when entries have arrived; before the first fetch.
    void on_arrival(std::function<void()> arrived) { arrived_ = std::move(arrived); }
    bool is_retired() const { return retired_; }
    void retire(); // nothing is found or kept any more: the model is another one now
    void computed(int64_t n_tokens, double seconds); // a step has computed so many tokens
    // Writes what is queued, in limited time, and ends the threads.  Whatever comes later is dropped.
    void close();
    CacheTiersStats stats() const;
    const TierIdentity &identity() const { return identity_; }
    const TierSizes &sizes() const { return sizes_; }

  private:
    class Fetch;
    struct FetchState;
    void enqueue(const TierKey &key, TierData data);
    bool has_queue_room(size_t size_bytes) const;
    void run_writer();
    void run_reader();
    std::shared_ptr<FetchState> next_to_read();
    TierData queued(const TierKey &key) const;
    void learn(double &mean, double value);
    void keep_speeds(std::unique_lock<std::mutex> &lock);

    const TierIdentity identity_;
    const TierSizes sizes_;
    const bool always_reads_;
    std::unique_ptr<DiskTier> disk_;
    std::unique_ptr<HostTier> host_;
    std::function<void()> arrived_;
    mutable std::mutex mutex_; // guards what follows
    std::condition_variable written_, wanted_;
    std::deque<TierKey> to_write_;
    std::unordered_map<TierKey, TierData, TierKeyHasher> queued_; // those, and the one that is being written
    size_t queued_bytes_ = 0, staged_bytes_ = 0;
    int64_t n_dropped_ = 0, n_refused_ = 0;
    TierSpeeds speeds_; // running means
    int n_unsaved_ = 0; // measurements since the disk has got them
    std::vector<std::weak_ptr<FetchState>> fetches_;
    bool is_signalled_ = false; // that entries have arrived, since they were last taken
    bool closing_ = false;
    std::atomic<bool> retired_ = false;
    std::vector<std::thread> threads_; // last: they use all of the above
};

} // namespace quire
