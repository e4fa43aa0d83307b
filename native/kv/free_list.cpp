#include "kv/free_list.h"

#include "core/error.h"

namespace quire {

FreeList::FreeList(int32_t n_ids) : links_(static_cast<size_t>(n_ids) + 1) { links_.back() = {head(), head()}; }

void FreeList::insert_after(int32_t before, int32_t id) {
    if (contains(id)) throw InternalError("free_list", cat("id ", id, " is already on the list"));
    Link &previous = links_[static_cast<size_t>(before)];
    links_[static_cast<size_t>(id)] = {before, previous.next};
    links_[static_cast<size_t>(previous.next)].previous = id;
    previous.next = id;
    ++size_;
}

void FreeList::remove(int32_t id) {
    Link &link = links_[static_cast<size_t>(id)];
    if (link.next == off_list) throw InternalError("free_list", cat("id ", id, " is not on the list"));
    links_[static_cast<size_t>(link.previous)].next = link.next;
    links_[static_cast<size_t>(link.next)].previous = link.previous;
    link = {};
    --size_;
}

std::optional<int32_t> FreeList::front() const { return size_ == 0 ? std::nullopt : std::optional(links_.back().next); }

std::optional<int32_t> FreeList::pop_front() {
    const auto id = front();
    if (id) remove(*id);
    return id;
}

std::vector<int32_t> FreeList::in_order() const {
    std::vector<int32_t> ids;
    ids.reserve(static_cast<size_t>(size_));
    for (int32_t id = links_.back().next; id != head(); id = links_[static_cast<size_t>(id)].next) ids.push_back(id);
    return ids;
}

} // namespace quire
