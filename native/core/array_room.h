// Room for arrays whose sizes are known before, in as few buffers as the device allows.  Drivers round each allocation up
// (CUDA to 2 MB), and some allow only some thousand of them (Vulkan), or none above a size.
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
    // `make`: a buffer of so many bytes.  An array that is larger than a buffer may be is asked for by itself: CapacityError.
    ArrayRoom(Device device, const std::vector<size_t> &sizes_bytes,
              const std::function<std::shared_ptr<Buffer>(size_t)> &make);
    Place next(); // of the arrays, in their order
    size_t size_bytes() const { return size_bytes_; }

  private:
    std::vector<Place> places_;
    size_t next_ = 0, size_bytes_ = 0;
};

} // namespace quire
