#include "graph/device_weights.h"

#include <set>

#include "core/array_room.h"

namespace quire {

void DeviceWeights::copy(const std::vector<WeightRef> &weights) {
    const Device device = backend_.device();
    std::vector<WeightRef> wanted;
    std::vector<size_t> sizes_bytes;
    std::set<const Weight *> seen;
    for (const WeightRef &weight : weights) {
        if (weight->tensor.device() == device || copies_.contains(weight.get()) || !seen.insert(weight.get()).second)
            continue;
        wanted.push_back(weight);
        sizes_bytes.push_back(Tensor::needed_bytes(weight->tensor.dtype(), weight->tensor.shape(), device));
    }
    ArrayRoom room(device, sizes_bytes, [&](size_t bytes) {
        return backend_.measures() ? Buffer::measured(device, bytes) : Buffer::allocate(device, bytes);
    });
    for (const WeightRef &weight : wanted) {
        const Tensor &given = weight->tensor;
        const auto [buffer, offset_bytes] = room.next();
        const Tensor copied = Tensor::in_buffer(given.dtype(), given.shape(), buffer, offset_bytes);
        if (!backend_.measures()) given.copy_to(copied);
        copies_.emplace(weight.get(), Copy{weight, copied});
    }
    size_bytes_ += room.size_bytes();
}

const Tensor &DeviceWeights::of(const WeightRef &weight) {
    if (const auto found = copies_.find(weight.get()); found != copies_.end()) return found->second.tensor;
    const Tensor &given = weight->tensor;
    const Device device = backend_.device();
    if (given.device() == device) {
        size_bytes_ += given.buffer()->size_bytes();
        return copies_.emplace(weight.get(), Copy{weight, given}).first->second.tensor;
    }
    copy({weight});
    return copies_.at(weight.get()).tensor;
}

} // namespace quire
