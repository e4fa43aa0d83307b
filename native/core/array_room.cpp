#include "core/array_room.h"

#include <algorithm>

#include "core/error.h"

namespace quire {

ArrayRoom::ArrayRoom(Device device, const std::vector<size_t> &sizes_bytes,
                     const std::function<std::shared_ptr<Buffer>(size_t)> &make) {
    const size_t alignment = std::max(tensor_alignment_bytes, device.alignment_bytes());
    const size_t largest = Buffer::largest_bytes(device);
    size_t first = 0, total = 0; // first array and size of the buffer being filled
    auto close = [&](size_t end) {
        if (first == end) return;
        const std::shared_ptr<Buffer> buffer = make(total);
        for (size_t i = first; i < end; ++i) places_[i].buffer = buffer;
        size_bytes_ += buffer->size_bytes();
        first = end;
        total = 0;
    };
    for (size_t i = 0; i < sizes_bytes.size(); ++i) {
        const size_t bytes = (sizes_bytes[i] + alignment - 1) / alignment * alignment;
        if (bytes > largest - std::min(total, largest)) close(i);
        places_.push_back({nullptr, total});
        total += bytes;
    }
    close(sizes_bytes.size());
}

ArrayRoom::Place ArrayRoom::next() {
    if (next_ == places_.size()) throw InternalError("buffer", "next() called more often than there are arrays");
    return places_[next_++];
}

} // namespace quire
