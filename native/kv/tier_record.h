// The form in which blocks and snapshots lie in files: a header, then the contents as the executor gives them.  Entries
// of the disk tier are such records, one in a file; an exported prefix is a sequence of them (prefix_file.h).
//
// All numbers are little-endian.  A record is valid for one identity of model, types and layout alone; the header has to
// be the expected one, byte for byte, and the contents must have its checksum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kv/block_tiers.h"
#include "kv/cache_spec.h"

namespace quire {

// Everything that contents depend on beside their names.
using TierIdentity = PrefixHash;

// `model`: names the weights, and everything else that numbers in the cache depend on: adapters, changed keys, kernels.
// The layout's geometry and types, and the version of this format, are added here.
TierIdentity tier_identity(const std::string &model, const CacheLayout &layout);

// Sizes and numbers of the contents of a block of each group, and of a state.
class TierSizes {
  public:
    explicit TierSizes(const CacheLayout &layout);
    std::optional<size_t> of(int group) const; // bytes; none: no such group
    // False if contents of this size have rows that are not finite, or states that are not numbers: one such block would
    // spoil every answer that reads it.
    bool are_numbers(int group, std::span<const uint8_t> contents) const;

  private:
    struct Rows { // K or V of a layer: for each head codes, if the type has some, then numbers
        size_t n_heads, head_bytes, codes_bytes;
        DType numbers;
    };
    static Rows rows_of(DType type, int n_heads, int head_dim, int n_tokens);
    struct Group {
        std::vector<Rows> rows;
        size_t size_bytes;
    };
    std::vector<Group> groups_;
    size_t state_bytes_;
};

constexpr size_t record_header_bytes = 128;
using RecordHeader = std::array<uint8_t, record_header_bytes>;

// The name of an entry in the disk's folder and among peers: hexadecimal digits, "-", the group or "state".
std::string entry_name(const TierKey &key);
std::optional<TierKey> entry_key(const std::string &name); // none: not such a name
std::string identity_name(const TierIdentity &identity); // the folder that entries lie in

// Detects damage, not malice.
uint64_t checksum(std::span<const uint8_t> bytes);

RecordHeader record_header(const TierIdentity &identity, const TierKey &key, std::span<const uint8_t> contents);
// The key and the size of the contents that a header tells; none if it is damaged or for another identity.
struct RecordInfo {
    TierKey key;
    uint64_t size_bytes, checksum;
};
std::optional<RecordInfo> read_header(const RecordHeader &header, const TierIdentity &identity);
// A whole record.  None if it is damaged, for another identity, of another size, or has no numbers.
std::optional<TierEntry> read_record(std::span<const uint8_t> record, const TierIdentity &identity,
                                     const TierSizes &sizes);

} // namespace quire
