// Memory for contents on their way, used again: fresh pages take as long as reading them.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kv/block_tiers.h"

namespace quire {

// Any thread may take and give back.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
  public:
    explicit BufferPool(size_t most_bytes) : most_bytes_(most_bytes) {} // kept for the next ones
    TierData take(size_t size_bytes);
    void clear(); // nothing is kept until the next take()

  private:
    void give_back(std::unique_ptr<uint8_t[]> bytes, size_t size_bytes);

    const size_t most_bytes_;
    std::mutex mutex_; // guards what follows
    std::vector<std::pair<size_t, std::unique_ptr<uint8_t[]>>> kept_;
    size_t kept_bytes_ = 0;
    bool is_used_ = false;
};

} // namespace quire
