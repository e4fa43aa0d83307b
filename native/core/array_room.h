// Places arrays of known sizes in as few buffers as the device allows.  Drivers round each allocation up (CUDA to 2
// MB), and some limit the number of allocations (Vulkan: a few thousand) or the size of one.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/buffer.h"

namespace quire {

class ArrayRoom {
  public:
    struct Place {
        std::shared_ptr<Buffer> buffer;
        size_t offset_bytes;
    };
    // `make` returns a buffer of the given size.  An array above the device's largest buffer gets a call of its own, so
    // that `make` raises CapacityError for it.
    ArrayRoom(Device device, const std::vector<size_t> &sizes_bytes,
              const std::function<std::shared_ptr<Buffer>(size_t)> &make);
    Place next(); // one call per array, in the order of `sizes_bytes`
    size_t size_bytes() const { return size_bytes_; }

  private:
    std::vector<Place> places_;
    size_t next_ = 0, size_bytes_ = 0;
};

} // namespace quire
