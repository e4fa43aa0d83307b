// A file with all that continues a text without computing it again: blocks of every group and a snapshot.
//
// A header (magic, version, identity, tokens, number of records, note), sealed by a checksum, then records as
// tier_record.h has them.  It is written beside its place, flushed and renamed.
#pragma once

#include <cstdint>
#include <string>

#include "core/system.h"
#include "kv/tier_record.h"

namespace quire {

class PrefixFileWriter {
  public:
    // `note`: of whoever writes it, kept as it is.  LoadError if the file cannot be made.
    PrefixFileWriter(const std::string &path, const TierIdentity &identity, std::string note);
    ~PrefixFileWriter(); // without finish(): nothing is left
    PrefixFileWriter(const PrefixFileWriter &) = delete;
    PrefixFileWriter &operator=(const PrefixFileWriter &) = delete;
    void add(const TierKey &key, const TierData &data); // CapacityError with the system's reason
    uint64_t finish(int64_t n_tokens); // bytes of the file

  private:
    void write(const void *from, size_t size_bytes);
    std::string path_, part_, note_;
    TierIdentity identity_;
    File file_;
    uint64_t at_, n_records_ = 0;
};

class PrefixFileReader {
  public:
    // LoadError if it is not such a file, is damaged, or belongs to another model, adapter, type or layout.
    PrefixFileReader(const std::string &path, const TierIdentity &identity, TierSizes sizes);
    int64_t n_tokens() const { return n_tokens_; }
    // The next record; none at the end.  LoadError if it is damaged.
    std::optional<TierEntry> next();
    // The note alone, for any model.
    static std::string note_of(const std::string &path);

  private:
    std::string path_;
    TierIdentity identity_;
    TierSizes sizes_;
    File file_;
    uint64_t at_ = 0, n_left_ = 0;
    int64_t n_tokens_ = 0;
};

} // namespace quire
