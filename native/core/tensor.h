// A typed array in a buffer.  Shapes are in NumPy's order: the last dimension is contiguous.  Only this file and
// tensor.cpp convert to ggml's reversed order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/buffer.h"
#include "core/dtype.h"

struct ggml_context;
struct ggml_tensor;

namespace quire {

using Shape = std::vector<int64_t>;

std::string to_string(const Shape &shape); // "[2, 3]"
// Bytes of a contiguous array; ShapeError for more than 4 dimensions, sizes below 1, partial blocks or overflow.
size_t shape_bytes(DType dtype, const Shape &shape);

// A contiguous array at a fixed address.  Copies of the handle share the memory.
// Invariants: the bytes lie inside the buffer; the address suits the dtype.
class Tensor {
  public:
    // Uninitialised memory on a device.
    static Tensor empty(DType dtype, Shape shape, Device device);
    // A tensor at `offset_bytes` from the base of a buffer.  On devices it needs room for `needed_bytes`.
    static Tensor in_buffer(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, size_t offset_bytes);

    // The bytes that a tensor takes on a device, including zeroed padding that some devices add to quantized rows.
    static size_t needed_bytes(DType dtype, const Shape &shape, Device device);

    DType dtype() const { return dtype_; }
    const Shape &shape() const { return shape_; }
    int64_t n_elements() const;
    size_t size_bytes() const { return size_bytes_; }
    const std::shared_ptr<Buffer> &buffer() const { return buffer_; }
    Device device() const { return buffer_->device(); }
    bool is_host() const { return buffer_->is_host(); }
    // The address in host memory; UnsupportedError if the tensor is on a device.
    uint8_t *data() const;
    void copy_from_host(const void *source, size_t size_bytes) const; // both copy the whole tensor
    void copy_to_host(void *target, size_t size_bytes) const;
    Tensor to(Device device) const; // the tensor itself if it already is there
    void copy_to(const Tensor &target) const; // InternalError unless type and shape are the same
    // Rows [begin, end) of the first dimension, in the same memory.
    Tensor part(int64_t begin, int64_t end) const;
    ggml_tensor *handle() const { return handle_; }

  private:
    // `is_part`: the bytes belong to a larger tensor.
    Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, size_t offset_bytes, bool is_part);
    static size_t needed_bytes(Device device, const ggml_tensor *record);
    DType dtype_;
    Shape shape_;
    size_t size_bytes_;
    std::shared_ptr<Buffer> buffer_;
    size_t offset_bytes_;
    std::shared_ptr<ggml_context> context_; // holds the one ggml_tensor
    ggml_tensor *handle_;
};

} // namespace quire
