#include "kv/buffer_pool.h"

#include <algorithm>

namespace quire {

TierData BufferPool::take(size_t size_bytes) {
    std::unique_ptr<uint8_t[]> bytes;
    {
        std::lock_guard lock(mutex_);
        is_used_ = true;
        const auto found = std::ranges::find(kept_, size_bytes, [](const auto &each) { return each.first; });
        if (found != kept_.end()) {
            bytes = std::move(found->second);
            *found = std::move(kept_.back());
            kept_.pop_back();
            kept_bytes_ -= size_bytes;
        }
    }
    if (!bytes) bytes.reset(new uint8_t[size_bytes]);
    const auto deleter = [pool = shared_from_this(), size_bytes](uint8_t *of) {
        pool->give_back(std::unique_ptr<uint8_t[]>(of), size_bytes);
    };
    return {std::shared_ptr<uint8_t[]>(bytes.release(), deleter), size_bytes};
}

void BufferPool::give_back(std::unique_ptr<uint8_t[]> bytes, size_t size_bytes) {
    std::lock_guard lock(mutex_);
    if (!is_used_ || kept_bytes_ + size_bytes > most_bytes_) return;
    kept_.emplace_back(size_bytes, std::move(bytes));
    kept_bytes_ += size_bytes;
}

void BufferPool::clear() {
    std::lock_guard lock(mutex_);
    kept_.clear();
    kept_bytes_ = 0;
    is_used_ = false;
}

} // namespace quire
