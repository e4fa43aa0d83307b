#include "graph/stock/device_adapters.h"

#include <ggml-backend.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/array_room.h"
#include "core/error.h"

namespace quire {
namespace {

constexpr int64_t rank_step = 16; // ranks are padded to multiples, so that stacks are seldom rebuilt

std::vector<const LowRankAdapter *> adapters_of(const StepBatch &batch) {
    std::vector<const LowRankAdapter *> found;
    for (const std::vector<AdapterUse> &uses : batch.adapters)
        for (const AdapterUse &use : uses)
            if (!use.adapter->for_devices.empty() && std::ranges::find(found, use.adapter) == found.end())
                found.push_back(use.adapter);
    return found;
}

} // namespace

int DeviceAdapters::n_levels(const StepBatch &batch) {
    size_t most = 0;
    for (const std::vector<AdapterUse> &uses : batch.adapters) most = std::max(most, uses.size());
    return static_cast<int>(most);
}

bool DeviceAdapters::prepare(const StepBatch &batch) {
    const Adapters wanted = adapters_of(batch);
    ++n_steps_;
    const bool moves = !has_room(wanted);
    if (moves) rebuild(wanted);
    for (const LowRankAdapter *adapter : wanted)
        if (Slot *slot = find_slot(*adapter)) slot->used = n_steps_;
    for (const LowRankAdapter *adapter : wanted) {
        if (find_slot(*adapter) != nullptr) continue;
        const auto oldest = std::ranges::min_element(slots_.begin() + 1, slots_.end(), {}, &Slot::used);
        oldest->number = 0; // an upload that fails leaves no adapter there
        fill(static_cast<size_t>(oldest - slots_.begin()), *adapter);
        oldest->number = adapter->number;
        oldest->used = n_steps_;
    }
    return moves;
}

const DeviceAdapters::Stacks *DeviceAdapters::find(const Weight *weight) const {
    const auto found = stacks_.find(weight);
    return found == stacks_.end() ? nullptr : &found->second;
}

int32_t DeviceAdapters::slot(const LowRankAdapter &adapter) const {
    if (adapter.for_devices.empty()) return 0; // it changes no matrix here
    for (size_t i = 1; i < slots_.size(); ++i)
        if (slots_[i].number == adapter.number) return static_cast<int32_t>(i);
    throw InternalError("adapter", "an adapter of the step is not on the device");
}

DeviceAdapters::Slot *DeviceAdapters::find_slot(const LowRankAdapter &adapter) {
    const auto found = std::ranges::find(slots_, adapter.number, &Slot::number);
    return found == slots_.end() ? nullptr : &*found;
}

bool DeviceAdapters::has_room(const Adapters &wanted) const {
    if (!wanted.empty() && wanted.size() + 1 > slots_.size()) return false;
    for (const LowRankAdapter *adapter : wanted)
        for (const auto &[weight, pair] : adapter->for_devices) {
            if (!products_.contains(weight)) continue;
            const Stacks *stacks = find(weight);
            if (stacks == nullptr || stacks->rank() < pair.a.shape()[0]) return false;
        }
    return true;
}

void DeviceAdapters::add_shapes(const Adapters &wanted) {
    for (const LowRankAdapter *adapter : wanted) {
        for (const auto &[weight, pair] : adapter->for_devices) {
            if (!products_.contains(weight)) continue;
            const int64_t rank = (pair.a.shape()[0] + rank_step - 1) / rank_step * rank_step;
            const auto [place, fresh] =
                shapes_.try_emplace(weight, Shape{pair.a.dtype(), rank, pair.a.shape()[1], pair.b.shape()[0]});
            place->second.rank = std::max(place->second.rank, rank);
        }
    }
}

// First with room for the adapters that were there, which come back when they are used again.
void DeviceAdapters::rebuild(const Adapters &wanted) {
    const size_t least = std::bit_ceil(wanted.size()) + 1;
    add_shapes(wanted);
    try {
        return allocate(std::max(slots_.size(), least));
    } catch (const CapacityError &) {
        shapes_.clear();
        add_shapes(wanted);
    }
    allocate(wanted.size() + 1);
}

void DeviceAdapters::allocate(size_t n_slots) {
    stacks_.clear();
    slots_.clear();
    size_bytes_ = 0;
    const auto n = static_cast<int64_t>(n_slots);
    std::vector<size_t> sizes_bytes;
    for (const auto &[weight, shape] : shapes_) {
        sizes_bytes.push_back(Tensor::needed_bytes(shape.dtype, {n, shape.rank, shape.n_in}, device_));
        sizes_bytes.push_back(Tensor::needed_bytes(shape.dtype, {n, shape.n_out, shape.rank}, device_));
    }
    ArrayRoom room(device_, sizes_bytes, [&](size_t bytes) {
        std::shared_ptr<Buffer> made = Buffer::allocate(device_, bytes);
        ggml_backend_buffer_clear(made->handle(), 0);
        return made;
    });
    auto next = [&](DType dtype, quire::Shape shape) {
        const auto [buffer, offset_bytes] = room.next();
        return Tensor::in_buffer(dtype, std::move(shape), buffer, offset_bytes);
    };
    for (const auto &[weight, shape] : shapes_) {
        Tensor a = next(shape.dtype, {n, shape.rank, shape.n_in});
        stacks_.emplace(weight, Stacks{std::move(a), next(shape.dtype, {n, shape.n_out, shape.rank})});
    }
    size_bytes_ = room.size_bytes();
    slots_.assign(n_slots, Slot{});
    slots_.front().used = UINT64_MAX;
}

void DeviceAdapters::fill(size_t slot, const LowRankAdapter &adapter) {
    std::vector<uint8_t> bytes;
    const auto write = [&](const Tensor &stack) {
        const size_t n = stack.size_bytes() / slots_.size();
        ggml_backend_tensor_set(stack.handle(), bytes.data(), slot * n, n);
    };
    // The rows of a matrix, and zeros behind each and behind the last.
    const auto write_padded = [&](const Tensor &stack, const Tensor *matrix) {
        bytes.assign(stack.size_bytes() / slots_.size(), 0);
        if (matrix != nullptr) {
            const auto rows = static_cast<size_t>(matrix->shape()[0]);
            const size_t from = matrix->size_bytes() / rows, to = bytes.size() / static_cast<size_t>(stack.shape()[1]);
            for (size_t i = 0; i < rows; ++i) std::memcpy(bytes.data() + i * to, matrix->data() + i * from, from);
        }
        write(stack);
    };
    std::vector<const Weight *> left = std::exchange(slots_[slot].filled, {});
    for (const auto &[weight, pair] : adapter.for_devices) {
        if (!products_.contains(weight)) continue;
        const Stacks &stacks = stacks_.at(weight);
        write_padded(stacks.a, &pair.a);
        write_padded(stacks.b, &pair.b);
        slots_[slot].filled.push_back(weight);
        std::erase(left, weight);
    }
    for (const Weight *weight : left) {
        const Stacks &stacks = stacks_.at(weight);
        write_padded(stacks.a, nullptr);
        write_padded(stacks.b, nullptr);
    }
}

} // namespace quire
