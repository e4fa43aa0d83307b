// Blocks and snapshots as files of a folder, which processes may share and which outlives them.
//
//     FOLDER/<identity>/<first byte of the name>/<name>-<group>.kv
//
// A file is a record (tier_record.h).  It is written beside its place and renamed, so that a file under its name is
// whole; what a process that died left behind has another name, and is removed later.  Nothing is flushed to the disk:
// after a power loss the checksum tells.  A file that is not as expected is a miss, and removed.
//
// Beside the entries lies a file of measured speeds, which no budget counts.
//
// The time of last modification is that of the last use.  Whoever finds the folder above its budget removes the least
// recently used files of all models.  A reader that has a file open keeps reading it.
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <unordered_set>

#include "kv/buffer_pool.h"
#include "kv/cache_tier.h"
#include "kv/tier_record.h"

namespace quire {

struct TierSpeeds {
    double read_s_per_byte = 0, compute_s_per_token = 0; // 0: not known
};

class DiskTier : public CacheTier {
  public:
    // Creates the folder.  LoadError if that fails, or others may write to it.
    DiskTier(const std::string &folder, uint64_t budget_bytes, const TierIdentity &identity, TierSizes sizes);
    TierKind kind() const override { return TierKind::disk; }
    bool is_known(const TierKey &key) const override;
    bool has(const TierKey &key) override;
    TierData get(const TierKey &key) override;
    void put(const TierKey &key, const TierData &data) override;
    void touch(const TierKey &key) override;
    TierStats stats() const override;
    // Memory that get() has lent goes back to the system, once it is free.
    void drop_buffers() { buffers_->clear(); }
    // Measurements of the model here, which outlive the process like entries do.
    std::optional<TierSpeeds> speeds() const;
    void keep(const TierSpeeds &speeds);

  private:
    using Path = std::filesystem::path;
    Path path_of(const TierKey &key) const;
    bool write(const Path &path, const TierKey &key, const TierData &data);
    bool write_whole(const Path &path, std::span<const uint8_t> begin, std::span<const uint8_t> rest);
    TierData read(const Path &path, const TierKey &key) const;
    void make_room(uint64_t size_bytes);
    const Path folder_, own_folder_;
    const uint64_t budget_bytes_;
    const TierIdentity identity_;
    const TierSizes sizes_;
    const std::shared_ptr<BufferPool> buffers_;
    std::mutex writing_; // one writer at a time
    uint64_t written_since_scan_;
    mutable std::mutex mutex_; // guards what follows
    std::unordered_set<TierKey, TierKeyHasher> known_;
    TierStats stats_;
};

} // namespace quire
