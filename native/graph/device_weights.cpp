#include "graph/device_weights.h"

namespace quire {

const Tensor &DeviceWeights::of(const WeightRef &weight) {
    if (const auto found = copies_.find(weight.get()); found != copies_.end()) return found->second.tensor;
    const Tensor &given = weight->tensor;
    const Device device = backend_.device();
    auto copied = [&] {
        if (!backend_.measures()) return given.to(device);
        const size_t bytes = Tensor::needed_bytes(given.dtype(), given.shape(), device);
        return Tensor::in_buffer(given.dtype(), given.shape(), Buffer::measured(device, bytes), 0);
    };
    const Copy &copy = copies_.emplace(weight.get(), Copy{weight, copied()}).first->second;
    size_bytes_ += copy.tensor.buffer()->size_bytes();
    return copy.tensor;
}

} // namespace quire
