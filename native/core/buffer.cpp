#include "core/buffer.h"

#include <ggml-backend-impl.h> // of the pinned version: a buffer of ours has no public constructor
#include <ggml-backend.h>

#include <algorithm>

#include "core/device_faults.h"
#include "core/error.h"

namespace quire {

Buffer::Buffer(Device device, ggml_backend_buffer *handle, size_t size_bytes, bool read_only,
               std::shared_ptr<void> owner)
    : device_(device), handle_(handle), size_bytes_(size_bytes), read_only_(read_only), owner_(std::move(owner)) {}

Buffer::~Buffer() { free_buffer(handle_); }

size_t Buffer::largest_bytes(Device device) {
    return ggml_backend_buft_get_max_size(ggml_backend_dev_buffer_type(device.handle()));
}

std::shared_ptr<Buffer> Buffer::allocate(Device device, size_t size_bytes) {
    // For size 0 ggml returns a dummy without an address.
    size_t wanted = size_bytes == 0 ? 1 : size_bytes;
    ggml_backend_buffer_type *type = ggml_backend_dev_buffer_type(device.handle());
    ggml_backend_buffer *handle = nullptr;
    std::string reason;
    if (const size_t largest = largest_bytes(device); wanted > largest) {
        reason = cat("its largest buffer is ", largest, " bytes");
    } else {
        driver_call(device, [&] {
            try {
                handle = ggml_backend_buft_alloc_buffer(type, wanted);
            } catch (const std::exception &error) { // the driver is out of memory
                reason = error.what();
            }
        });
        if (reason.empty()) reason = cat(device.memory_free_bytes(), " bytes are free");
    }
    if (handle == nullptr)
        throw CapacityError("buffer", cat("cannot allocate ", size_bytes, " bytes on ", device.name(), ": ", reason));
    return std::shared_ptr<Buffer>(new Buffer(device, handle, size_bytes, false, nullptr));
}

ggml_backend_buffer *new_measured_buffer(Device device, size_t size_bytes) {
    ggml_backend_buffer_i functions{};
    // An address without memory behind it, aligned for any device.
    functions.get_base = [](ggml_backend_buffer *) -> void * { return reinterpret_cast<void *>(uintptr_t{1} << 30); };
    return ggml_backend_buffer_init(ggml_backend_dev_buffer_type(device.handle()), functions, nullptr,
                                    std::max<size_t>(size_bytes, 1));
}

std::shared_ptr<Buffer> Buffer::measured(Device device, size_t size_bytes) {
    return std::shared_ptr<Buffer>(
        new Buffer(device, new_measured_buffer(device, size_bytes), size_bytes, true, nullptr));
}

std::shared_ptr<Buffer> Buffer::borrow(void *data, size_t size_bytes, bool read_only, std::shared_ptr<void> owner) {
    Device cpu = find_device("CPU");
    // ggml requires an aligned base for its own allocator.  Quire places the tensors itself, so rounding the base down
    // is harmless as long as the callers check the alignment of each tensor.
    auto address = reinterpret_cast<uintptr_t>(data) & ~static_cast<uintptr_t>(tensor_alignment_bytes - 1);
    size_t slack = reinterpret_cast<uintptr_t>(data) - address;
    ggml_backend_buffer *handle =
        ggml_backend_cpu_buffer_from_ptr(reinterpret_cast<void *>(address), size_bytes + slack);
    if (handle == nullptr) throw CapacityError("buffer", "ggml cannot wrap the borrowed memory in a buffer");
    return std::shared_ptr<Buffer>(new Buffer(cpu, handle, size_bytes + slack, read_only, std::move(owner)));
}

bool Buffer::is_host() const { return ggml_backend_buffer_is_host(handle_); }

uint8_t *Buffer::base() const { return static_cast<uint8_t *>(ggml_backend_buffer_get_base(handle_)); }

} // namespace quire
