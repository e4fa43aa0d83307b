#include "kv/lru_half.h"

namespace quire {

void LruHalf::age() {
    while (newer_.size() > static_cast<int32_t>(older_.size())) older_.insert(*newer_.pop_front());
}

void LruHalf::add(int32_t id) {
    newer_.push_back(id);
    age();
}

void LruHalf::remove(int32_t id) {
    if (older_.erase(id) == 0) newer_.remove(id);
    age();
}

void LruHalf::clear() {
    while (newer_.size() > 0) newer_.pop_front();
    older_.clear();
}

std::optional<int32_t> LruHalf::next_after(int32_t last) const {
    if (older_.empty()) return std::nullopt;
    const auto next = older_.upper_bound(last);
    return next == older_.end() ? *older_.begin() : *next;
}

} // namespace quire
