#include "graph/stock/device_weights.h"

#include <algorithm>
#include <set>

#include "core/array_room.h"

namespace quire {

std::vector<DeviceWeights::Room> DeviceWeights::rooms_for(const std::vector<WeightRef> &weights,
                                                          const std::vector<MatrixGroup> &groups) const {
    const Device device = backend_.device();
    std::vector<Room> rooms;
    std::set<const Weight *> seen;
    auto is_wanted = [&](const WeightRef &weight) {
        return weight->tensor.device() != device && !copies_.contains(weight.get()) && !seen.contains(weight.get());
    };
    // Parts are also read on their own, so each begins at the device's alignment.
    auto fits = [&](const MatrixGroup &group) {
        const size_t alignment = device.alignment_bytes(), most = Buffer::largest_bytes(device);
        size_t bytes = 0;
        for (const WeightRef &weight : group.weights) {
            if (bytes % alignment != 0) return false;
            bytes += weight->tensor.size_bytes();
        }
        return bytes <= most;
    };
    for (const MatrixGroup &group : groups) {
        if (!std::ranges::all_of(group.weights, is_wanted) || !fits(group)) continue;
        const Tensor &first = group.weights.front()->tensor;
        Room room{group.weights, first.dtype(), first.shape(), group.is_gate};
        room.shape[0] = 0;
        for (const WeightRef &weight : group.weights) {
            room.shape[0] += weight->tensor.shape()[0];
            seen.insert(weight.get());
        }
        rooms.push_back(std::move(room));
    }
    for (const WeightRef &weight : weights) {
        if (!is_wanted(weight)) continue;
        rooms.push_back({{weight}, weight->tensor.dtype(), weight->tensor.shape()});
        seen.insert(weight.get());
    }
    return rooms;
}

void DeviceWeights::copy(const std::vector<WeightRef> &weights, const std::vector<MatrixGroup> &groups) {
    const Device device = backend_.device();
    const std::vector<Room> rooms = rooms_for(weights, groups);
    std::vector<size_t> sizes_bytes;
    for (const Room &each : rooms) sizes_bytes.push_back(Tensor::needed_bytes(each.dtype, each.shape, device));
    ArrayRoom room(device, sizes_bytes, [&](size_t bytes) {
        return backend_.measures() ? Buffer::measured(device, bytes) : Buffer::allocate(device, bytes);
    });
    for (const Room &each : rooms) {
        const auto [buffer, offset_bytes] = room.next();
        std::shared_ptr<const Tensor> whole;
        if (each.weights.size() > 1)
            whole = std::make_shared<const Tensor>(Tensor::in_buffer(each.dtype, each.shape, buffer, offset_bytes));
        int64_t first_row = 0;
        size_t done_bytes = 0;
        for (const WeightRef &weight : each.weights) {
            const Tensor &given = weight->tensor;
            const Tensor copied = Tensor::in_buffer(given.dtype(), given.shape(), buffer, offset_bytes + done_bytes);
            if (!backend_.measures()) given.copy_to(copied);
            copies_.emplace(weight.get(), Copy{weight, copied, whole, first_row, each.is_gate});
            first_row += given.shape()[0];
            done_bytes += given.size_bytes();
        }
    }
    size_bytes_ += room.size_bytes();
}

void DeviceWeights::arrange(const std::vector<WeightRef> &matrices) {
    std::vector<BatchMatrices::Source> sources;
    std::set<const ggml_tensor *> seen;
    // Parts of a merged matrix in order of their rows.
    auto parts_of = [&](const Copy &copy) {
        std::map<int64_t, Tensor> parts;
        for (const auto &[weight, other] : copies_)
            if (copy.whole && other.whole == copy.whole) parts.emplace(other.first_row, weight->tensor);
        if (!copy.whole) parts.emplace(0, copy.weight->tensor);
        std::vector<Tensor> found;
        for (const auto &[first_row, part] : parts) found.push_back(part);
        return found;
    };
    for (const WeightRef &weight : matrices) {
        const auto found = copies_.find(weight.get());
        const size_t rank = weight->tensor.shape().size();
        if (found == copies_.end() || rank < 2 || rank > 3 || !weight->tensor.is_host()) continue;
        ggml_tensor *matrix = (found->second.whole ? *found->second.whole : found->second.tensor).handle();
        if (seen.insert(matrix).second) sources.push_back({matrix, parts_of(found->second)});
    }
    arranged_.arrange(backend_, sources);
}

std::optional<DeviceWeights::Merged> DeviceWeights::merged(const WeightRef &weight) const {
    const auto found = copies_.find(weight.get());
    if (found == copies_.end() || !found->second.whole) return std::nullopt;
    return Merged{found->second.whole->handle(), found->second.first_row, found->second.is_gate};
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
