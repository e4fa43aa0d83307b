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

int64_t padded(int64_t rank) { return (rank + rank_step - 1) / rank_step * rank_step; }

// The use that names a slot: scales matter where lengths depend on them.
AdapterUse named_slot(const AdapterUse &use) { return {use.adapter, use.adapter->has_lengths ? use.scale : 0, 0}; }

} // namespace

DeviceAdapters::Adapters DeviceAdapters::adapters_of(const StepBatch &batch) {
    Adapters found;
    for (const std::vector<AdapterUse> &uses : batch.adapters)
        for (const AdapterUse &use : uses) {
            const AdapterUse slot = named_slot(use);
            const auto is_same = [&](const AdapterUse &other) {
                return other.adapter == slot.adapter && other.scale == slot.scale;
            };
            if (!use.adapter->for_devices.empty() && std::ranges::none_of(found, is_same)) found.push_back(slot);
        }
    return found;
}

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
    for (const AdapterUse &use : wanted)
        if (Slot *slot = find_slot(use)) slot->used = n_steps_;
    for (const AdapterUse &use : wanted) {
        if (find_slot(use) != nullptr) continue;
        const auto oldest = std::ranges::min_element(slots_.begin() + 1, slots_.end(), {}, &Slot::used);
        oldest->number = 0; // an upload that fails leaves no adapter there
        fill(static_cast<size_t>(oldest - slots_.begin()), use);
        oldest->number = use.adapter->number;
        oldest->scale = use.scale;
        oldest->used = n_steps_;
    }
    return moves;
}

const DeviceAdapters::Stacks *DeviceAdapters::find(const AdaptedUse &use) const {
    const auto found = stacks_.find(use);
    return found == stacks_.end() ? nullptr : &found->second;
}

int32_t DeviceAdapters::slot(const AdapterUse &use) const {
    if (use.adapter->for_devices.empty()) return 0; // it changes no matrix here
    const float scale = named_slot(use).scale;
    for (size_t i = 1; i < slots_.size(); ++i)
        if (slots_[i].number == use.adapter->number && slots_[i].scale == scale) return static_cast<int32_t>(i);
    throw InternalError("adapter", "an adapter of the step is not on the device");
}

DeviceAdapters::Slot *DeviceAdapters::find_slot(const AdapterUse &use) {
    const auto found = std::ranges::find_if(
        slots_, [&](const Slot &slot) { return slot.number == use.adapter->number && slot.scale == use.scale; });
    return found == slots_.end() ? nullptr : &*found;
}

DeviceAdapters::Shapes DeviceAdapters::shapes_of(const AdaptedUse &use, const DevicePair &pair) {
    Shapes shapes;
    for (const int part : {a, b, whole, bias}) {
        const auto &given = pair.parts[static_cast<size_t>(part)];
        if (!given) continue;
        Shape &shape = shapes[static_cast<size_t>(part)];
        shape = {given->dtype(), given->shape()[0], given->shape()[1]};
        if (part == a) (use.is_table ? shape.n_columns : shape.n_rows) = padded(pair.parts[b]->shape()[1]);
        if (part == b) shape.n_columns = padded(shape.n_columns);
    }
    if (!pair.lengths.empty()) shapes[factors] = {DType::f32, 1, static_cast<int64_t>(pair.lengths.lengths.size())};
    return shapes;
}

bool DeviceAdapters::has_room(const Adapters &wanted) const {
    if (!wanted.empty() && wanted.size() + 1 > slots_.size()) return false;
    for (const AdapterUse &each : wanted)
        for (const auto &[use, pair] : each.adapter->for_devices) {
            if (!serves(use)) continue;
            const Shapes shapes = shapes_of(use, pair);
            const auto there = shapes_.find(use);
            if (there == shapes_.end() || find(use) == nullptr) return false;
            for (size_t part = 0; part < n_parts; ++part)
                if (there->second[part].n_rows < shapes[part].n_rows ||
                    there->second[part].n_columns < shapes[part].n_columns)
                    return false;
        }
    return true;
}

void DeviceAdapters::add_shapes(const Adapters &wanted) {
    for (const AdapterUse &each : wanted)
        for (const auto &[use, pair] : each.adapter->for_devices) {
            if (!serves(use)) continue;
            const Shapes shapes = shapes_of(use, pair);
            Shapes &there = shapes_[use];
            for (size_t part = 0; part < n_parts; ++part) {
                if (shapes[part].n_rows == 0) continue;
                there[part] = {shapes[part].dtype, std::max(there[part].n_rows, shapes[part].n_rows),
                               std::max(there[part].n_columns, shapes[part].n_columns)};
            }
        }
}

// First with room for the adapters that were there, which come back when they are used again.
void DeviceAdapters::rebuild(const Adapters &wanted) {
    const size_t least = std::bit_ceil(wanted.size()) + 1;
    add_shapes(wanted);
    const size_t n_slots = std::max(slots_.size(), least);
    if (budget_bytes_ == 0 || needed_bytes(n_slots) <= budget_bytes_) {
        try {
            return allocate(n_slots);
        } catch (const CapacityError &) {
        } // without those that the step does not need
    }
    shapes_.clear();
    add_shapes(wanted);
    allocate(wanted.size() + 1);
}

size_t DeviceAdapters::needed_bytes(size_t n_slots) const {
    size_t size_bytes = 0;
    for (const auto &[use, shapes] : shapes_)
        for (const Shape &shape : shapes)
            if (shape.n_rows > 0)
                size_bytes += Tensor::needed_bytes(
                    shape.dtype, {static_cast<int64_t>(n_slots), shape.n_rows, shape.n_columns}, device_);
    return size_bytes;
}

void DeviceAdapters::allocate(size_t n_slots) {
    stacks_.clear();
    slots_.clear();
    size_bytes_ = 0;
    const auto n = static_cast<int64_t>(n_slots);
    std::vector<size_t> sizes_bytes;
    const auto for_parts = [&](const auto &use_part) {
        for (const auto &[use, shapes] : shapes_)
            for (size_t part = 0; part < n_parts; ++part)
                if (shapes[part].n_rows > 0)
                    use_part(use, part, shapes[part].dtype,
                             quire::Shape{n, shapes[part].n_rows, shapes[part].n_columns});
    };
    for_parts([&](const AdaptedUse &, size_t, DType dtype, const quire::Shape &shape) {
        sizes_bytes.push_back(Tensor::needed_bytes(dtype, shape, device_));
    });
    ArrayRoom room(device_, sizes_bytes, [&](size_t bytes) {
        std::shared_ptr<Buffer> made = Buffer::allocate(device_, bytes);
        ggml_backend_buffer_clear(made->handle(), 0);
        return made;
    });
    for_parts([&](const AdaptedUse &use, size_t part, DType dtype, const quire::Shape &shape) {
        const auto [buffer, offset_bytes] = room.next();
        stacks_[use][part] = Tensor::in_buffer(dtype, shape, buffer, offset_bytes);
    });
    size_bytes_ = room.size_bytes();
    slots_.assign(n_slots, Slot{});
    slots_.front().used = UINT64_MAX;
}

void DeviceAdapters::fill(size_t slot, const AdapterUse &each) {
    std::vector<uint8_t> bytes;
    // Rows of a matrix, and zeros behind each and behind the last.
    const auto write = [&](const Tensor &stack, const uint8_t *from, size_t n_rows, size_t from_bytes) {
        const size_t n = stack.size_bytes() / slots_.size();
        bytes.assign(n, 0);
        const size_t to_bytes = n / static_cast<size_t>(stack.shape()[1]);
        for (size_t i = 0; i < n_rows; ++i) std::memcpy(bytes.data() + i * to_bytes, from + i * from_bytes, from_bytes);
        ggml_backend_tensor_set(stack.handle(), bytes.data(), slot * n, n);
    };
    std::set<AdaptedUse> left = std::exchange(slots_[slot].filled, {});
    for (const auto &[use, pair] : each.adapter->for_devices)
        if (serves(use)) left.insert(use);
    for (const AdaptedUse &use : left) {
        const Stacks &stacks = stacks_.at(use);
        const auto given = each.adapter->for_devices.find(use);
        const DevicePair *pair = given == each.adapter->for_devices.end() ? nullptr : &given->second;
        for (const int part : {a, b, whole, bias}) {
            const auto at = static_cast<size_t>(part);
            if (!stacks[at]) continue;
            if (pair == nullptr || !pair->parts[at]) {
                write(*stacks[at], nullptr, 0, 0);
                continue;
            }
            const Tensor &matrix = *pair->parts[at];
            const auto n_rows = static_cast<size_t>(matrix.shape()[0]);
            write(*stacks[at], matrix.data(), n_rows, matrix.size_bytes() / n_rows);
        }
        if (stacks[factors]) {
            std::vector<float> values(pair == nullptr ? 0 : pair->lengths.lengths.size());
            if (!values.empty()) pair->lengths.factors(each.scale, 0, values.size(), 1, values.data());
            write(*stacks[factors], reinterpret_cast<const uint8_t *>(values.data()), values.empty() ? 0 : 1,
                  values.size() * sizeof(float));
        }
        if (pair != nullptr) slots_[slot].filled.insert(use);
    }
}

} // namespace quire
