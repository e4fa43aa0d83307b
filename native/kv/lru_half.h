// Free ids by age in two halves, of which the older one is in order of address: an id grows old when the newer ones are
// more than the older ones, and stays so.  Every operation is O(log n), over time.
//
// Ids of the older half are taken one after the other, those above the last one first: what one sequence after another
// takes then lies side by side again, whatever the order in which it was given back.
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
    // Of the older half the next one above `last`, or the first one; none where there are no ids.
    std::optional<int32_t> next_after(int32_t last) const;

  private:
    void age();
    FreeList newer_; // at most as many as the older ones
    std::set<int32_t> older_;
};

} // namespace quire
