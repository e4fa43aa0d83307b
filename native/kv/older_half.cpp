#include "kv/older_half.h"

namespace quire {

void OlderHalf::age() {
    while (newer_.size() > static_cast<int32_t>(older_.size())) older_.insert(*newer_.pop_front());
}

void OlderHalf::add(int32_t id) {
    newer_.push_back(id);
    age();
}

void OlderHalf::remove(int32_t id) {
    if (older_.erase(id) == 0) newer_.remove(id);
    age();
}

void OlderHalf::clear() {
    while (newer_.size() > 0) newer_.pop_front();
    older_.clear();
}

std::optional<int32_t> OlderHalf::next_after(int32_t last) const {
    if (older_.empty()) return std::nullopt;
    const auto next = older_.upper_bound(last);
    return next == older_.end() ? *older_.begin() : *next;
}

} // namespace quire
