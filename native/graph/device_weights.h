// Weights of a model as a device has them: copies, but of those that are there already.
#pragma once

#include <map>

#include "core/device.h"
#include "graph/operations.h"

namespace quire {

class DeviceWeights {
  public:
    explicit DeviceWeights(const Backend &backend) : backend_(backend) {}
    // Copies of all of these side by side.  CapacityError when there is no memory.
    void copy(const std::vector<WeightRef> &weights);
    // What has no copy yet gets one, by itself: before any step, as the largest graph is made then.
    const Tensor &of(const WeightRef &weight);
    size_t size_bytes() const { return size_bytes_; }

  private:
    struct Copy {
        WeightRef weight; // kept, as its address is the key
        Tensor tensor;
    };
    const Backend &backend_;
    std::map<const Weight *, Copy> copies_;
    size_t size_bytes_ = 0;
};

} // namespace quire
