#include "graph/stock/input_memory.h"

#include <ggml-backend.h>

#include <algorithm>

#include "core/buffer.h"
#include "core/device_faults.h"
#include "core/error.h"

namespace quire {

void InputMemory::FreeBuffer::operator()(ggml_backend_buffer *buffer) const { free_buffer(buffer); }

ggml_backend_buffer *new_transfer_buffer(const Backend &backend, size_t size_bytes) {
    ggml_backend_buffer_type_t type = ggml_backend_dev_host_buffer_type(backend.device().handle());
    ggml_backend_buffer *made = type == nullptr ? nullptr : ggml_backend_buft_alloc_buffer(type, size_bytes);
    // Pinned memory is scarce; other memory works, but is slower.
    if (made == nullptr) made = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size_bytes);
    if (made == nullptr) throw CapacityError("graph", cat("out of memory: ", size_bytes, " bytes for transfers"));
    return made;
}

void InputMemory::place(LoweredGraph &graph, const std::function<void()> &before_moving) {
    GraphInputs &inputs = graph.inputs;
    ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(backend_.handle());
    const size_t alignment = std::max<size_t>(64, ggml_backend_buft_get_alignment(type));
    std::vector<size_t> places;
    size_t end = 0;
    for (const ggml_tensor *input : inputs.all) {
        places.push_back(end);
        end += (ggml_backend_buft_get_alloc_size(type, input) + alignment - 1) / alignment * alignment;
    }
    if (end == 0) return;
    if (end > size_bytes_) {
        before_moving();
        size_bytes_ = 0;
        host_.reset();
        device_.reset();
        const bool measures = backend_.measures();
        device_.reset(measures ? new_measured_buffer(backend_.device(), end)
                               : ggml_backend_buft_alloc_buffer(type, end));
        if (!device_) throw CapacityError("graph", cat("out of device memory: ", end, " bytes of graph inputs"));
        if (!measures && !ggml_backend_buffer_is_host(device_.get())) host_.reset(new_transfer_buffer(backend_, end));
        size_bytes_ = end;
    }
    auto *base = static_cast<char *>(ggml_backend_buffer_get_base(device_.get()));
    auto put = [&](ggml_tensor *tensor, size_t offset) {
        if (ggml_backend_tensor_alloc(device_.get(), tensor, base + offset) != GGML_STATUS_SUCCESS)
            throw InternalError("graph", "cannot place an input in its buffer");
    };
    for (size_t i = 0; i < places.size(); ++i) put(inputs.all[i], places[i]);
    inputs.packed = ggml_new_tensor_1d(graph.context.get(), GGML_TYPE_I8, static_cast<int64_t>(end));
    put(inputs.packed, 0);
}

uint8_t *InputMemory::host_bytes(const ggml_tensor *input) const {
    auto *data = static_cast<uint8_t *>(input->data);
    if (!host_) return data;
    const auto *base = static_cast<const uint8_t *>(ggml_backend_buffer_get_base(device_.get()));
    return static_cast<uint8_t *>(ggml_backend_buffer_get_base(host_.get())) + (data - base);
}

void InputMemory::send(const LoweredGraph &graph) const {
    const ggml_tensor *packed = graph.inputs.packed;
    if (!host_ || packed == nullptr) return;
    ggml_backend_tensor_set_async(backend_.handle(), graph.inputs.packed, ggml_backend_buffer_get_base(host_.get()), 0,
                                  ggml_nbytes(packed));
}

} // namespace quire
