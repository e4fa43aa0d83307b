// A small map from token ids to values: open addressing, entries in one array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quire {

// Entries are never removed one by one, and memory is kept over clear(): no allocation once it has grown.
template <class Value> class TokenMap {
  public:
    struct Entry {
        int32_t id;
        Value value;
    };

    const std::vector<Entry> &entries() const { return entries_; }
    bool empty() const { return entries_.empty(); }

    const Value *find(int32_t id) const {
        if (entries_.empty()) return nullptr;
        const int32_t entry = index_[place(id)];
        return entry < 0 ? nullptr : &entries_[entry].value;
    }

    // The value of `id`, made with Value{} where there is none.
    Value &operator[](int32_t id) {
        if (2 * (entries_.size() + 1) > index_.size()) grow();
        int32_t &entry = index_[place(id)];
        if (entry < 0) {
            entry = static_cast<int32_t>(entries_.size());
            entries_.push_back({id, Value{}});
        }
        return entries_[entry].value;
    }

    void clear() {
        // Each is still found by probing while later ones are in place, so empty them from the last.
        for (size_t i = entries_.size(); i-- > 0;) index_[place(entries_[i].id)] = -1;
        entries_.clear();
    }

  private:
    size_t place(int32_t id) const {
        const size_t mask = index_.size() - 1;
        size_t slot = (static_cast<uint32_t>(id) * 2654435769u >> 7) & mask;
        while (index_[slot] >= 0 && entries_[index_[slot]].id != id) slot = (slot + 1) & mask;
        return slot;
    }

    void grow() {
        index_.assign(index_.empty() ? 64 : 2 * index_.size(), -1);
        for (size_t i = 0; i < entries_.size(); ++i) index_[place(entries_[i].id)] = static_cast<int32_t>(i);
    }

    std::vector<Entry> entries_;
    std::vector<int32_t> index_; // [power of two] positions in entries_, -1 where free
};

} // namespace quire
