// Free ids in two halves by age.  When the newer half grows larger than the older one, its oldest id moves over and
// stays there.  Every operation is amortized O(log n).
//
// Ids of the older half are taken in order of address, starting above the last one taken: sequences that take blocks
// one after the other then get neighbours again, whatever the order in which they were given back.
#pragma once

#include <cstdint>
#include <optional>
#include <set>

#include "kv/free_list.h"

namespace quire {

class LruHalf {
  public:
    // For ids 0 .. n_ids - 1; empty at first.
    explicit LruHalf(int32_t n_ids) : newer_(n_ids) {}
    bool contains(int32_t id) const { return newer_.contains(id) || older_.contains(id); }
    bool is_older(int32_t id) const { return older_.contains(id); }
    int32_t size() const { return newer_.size() + static_cast<int32_t>(older_.size()); }
    void add(int32_t id); // the newest
    void remove(int32_t id);
    void clear();
    // The next id of the older half above `last`, or its first one; none if there are no ids.
    std::optional<int32_t> next_after(int32_t last) const;

  private:
    void age();
    FreeList newer_; // at most as many as the older ones
    std::set<int32_t> older_;
};

} // namespace quire
