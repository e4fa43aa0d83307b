// The ids that nobody refers to, in the order in which they are to be reused.  Every operation is O(1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace quire {

// A doubly linked list threaded through two arrays; an id is on it at most once.
class FreeList {
  public:
    // For ids 0 .. n_ids - 1; empty at first.
    explicit FreeList(int32_t n_ids);
    int32_t size() const { return size_; }
    bool contains(int32_t id) const { return links_[static_cast<size_t>(id)].next != off_list; }
    void push_front(int32_t id) { insert_after(head(), id); }
    void push_back(int32_t id) { insert_after(links_[static_cast<size_t>(head())].previous, id); }
    void remove(int32_t id);
    std::optional<int32_t> front() const;
    std::optional<int32_t> pop_front();
    std::vector<int32_t> in_order() const; // first to be reused first

  private:
    static constexpr int32_t off_list = -1;
    struct Link {
        int32_t previous = off_list, next = off_list;
    };
    int32_t head() const { return static_cast<int32_t>(links_.size()) - 1; } // a sentinel that closes the ring
    void insert_after(int32_t before, int32_t id);
    std::vector<Link> links_;
    int32_t size_ = 0;
};

} // namespace quire
