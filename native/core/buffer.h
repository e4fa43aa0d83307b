// Device memory that holds tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/device.h"

struct ggml_backend_buffer;

namespace quire {

// A region of device memory, freed with the last tensor in it.  `owner` keeps borrowed host memory alive
// (a mapped file, a NumPy array).
class Buffer {
  public:
    // Allocate memory on `device`; CapacityError if there is not enough.
    static std::shared_ptr<Buffer> allocate(Device device, size_t size_bytes);
    static size_t largest_bytes(Device device); // the largest buffer the device allows
    // A buffer without memory, for measuring; its contents must not be accessed.
    static std::shared_ptr<Buffer> measured(Device device, size_t size_bytes);
    // Use host memory that `owner` keeps alive in place, on the CPU.  Quire never writes to `read_only` memory.
    static std::shared_ptr<Buffer> borrow(void *data, size_t size_bytes, bool read_only, std::shared_ptr<void> owner);
    ~Buffer();
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    Device device() const { return device_; }
    size_t size_bytes() const { return size_bytes_; }
    bool is_host() const;
    bool read_only() const { return read_only_; }
    uint8_t *base() const; // a device address if the buffer is on a device
    ggml_backend_buffer *handle() const { return handle_; }

  private:
    Buffer(Device device, ggml_backend_buffer *handle, size_t size_bytes, bool read_only, std::shared_ptr<void> owner);
    Device device_;
    ggml_backend_buffer *handle_;
    size_t size_bytes_;
    bool read_only_;
    std::shared_ptr<void> owner_;
};

// The ggml buffer behind Buffer::measured, for ggml's own functions.
ggml_backend_buffer *new_measured_buffer(Device device, size_t size_bytes);

// The alignment that tensors in a CPU buffer need.
inline constexpr size_t tensor_alignment_bytes = 64;

} // namespace quire
