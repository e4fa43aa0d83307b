#include "graph/device_weights.h"

namespace quire {

const Tensor &DeviceWeights::of(const WeightRef &weight) {
    if (const auto found = copies_.find(weight.get()); found != copies_.end()) return found->second.tensor;
    const Copy &copy = copies_.emplace(weight.get(), Copy{weight, weight->tensor.to(device_)}).first->second;
    size_bytes_ += copy.tensor.buffer()->size_bytes();
    return copy.tensor;
}

} // namespace quire
