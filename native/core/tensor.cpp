#include "core/tensor.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <tuple>

#include "core/device_faults.h"
#include "core/error.h"

namespace quire {

std::string to_string(const Shape &shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + "]";
}

size_t shape_bytes(DType dtype, const Shape &shape) {
    if (shape.empty() || shape.size() > GGML_MAX_DIMS) {
        throw ShapeError("tensor", cat("a tensor cannot have ", shape.size(), " dimensions: expected 1 to 4"));
    }
    size_t bytes = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] < 1) throw ShapeError("tensor", cat("shape ", to_string(shape), " has a dimension below 1"));
        bool last = i + 1 == shape.size();
        size_t factor = last ? row_bytes(dtype, shape[i]) : static_cast<size_t>(shape[i]);
        if (__builtin_mul_overflow(bytes, factor, &bytes) || bytes > (size_t{1} << 62)) {
            throw ShapeError("tensor", cat("a tensor of shape ", to_string(shape), " exceeds 2^62 bytes"));
        }
    }
    return bytes;
}

namespace {

// Make a ggml tensor without memory, and the context that owns it.
std::pair<std::shared_ptr<ggml_context>, ggml_tensor *> make_record(DType dtype, const Shape &shape) {
    ggml_init_params params{ggml_tensor_overhead(), nullptr, true};
    std::shared_ptr<ggml_context> context(ggml_init(params), ggml_free);
    if (!context) throw CapacityError("tensor", "out of memory for a tensor's record");
    int64_t reversed[GGML_MAX_DIMS];
    for (size_t i = 0; i < shape.size(); ++i) reversed[i] = shape[shape.size() - 1 - i];
    ggml_tensor *handle =
        ggml_new_tensor(context.get(), static_cast<ggml_type>(dtype), static_cast<int>(shape.size()), reversed);
    return {std::move(context), handle};
}

} // namespace

Tensor::Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, size_t offset_bytes, bool is_part)
    : dtype_(dtype), shape_(std::move(shape)), size_bytes_(shape_bytes(dtype, shape_)), buffer_(std::move(buffer)),
      offset_bytes_(offset_bytes) {
    if (offset_bytes > buffer_->size_bytes() || size_bytes_ > buffer_->size_bytes() - offset_bytes) {
        throw ShapeError("tensor", cat("a tensor of ", size_bytes_, " bytes at ", offset_bytes,
                                       " does not fit in its buffer of ", buffer_->size_bytes(), " bytes"));
    }
    std::tie(context_, handle_) = make_record(dtype_, shape_);
    handle_->buffer = buffer_->handle();
    handle_->data = buffer_->base() + offset_bytes;
    // Skip ggml's initialisation, which clears a tensor's padding: the last tensor of a mapped file may have none, and
    // the bytes behind a part belong to the rest of the tensor.
    if (buffer_->is_host() || is_part) return;
    if (needed_bytes(buffer_->device(), handle_) > buffer_->size_bytes() - offset_bytes) {
        throw ShapeError("tensor",
                         cat("a tensor of ", size_bytes_, " bytes at ", offset_bytes, " of ", buffer_->size_bytes(),
                             " bytes leaves no room for the padding of ", device().name()));
    }
    if (ggml_backend_buffer_init_tensor(buffer_->handle(), handle_) != GGML_STATUS_SUCCESS)
        throw CapacityError("tensor", cat("cannot create a tensor on ", device().name()));
}

size_t Tensor::needed_bytes(Device device, const ggml_tensor *record) {
    return ggml_backend_buft_get_alloc_size(ggml_backend_dev_buffer_type(device.handle()), record);
}

size_t Tensor::needed_bytes(DType dtype, const Shape &shape, Device device) {
    const size_t bytes = shape_bytes(dtype, shape); // checks the shape, too
    if (device.kind() == DeviceKind::cpu) return bytes;
    return std::max(bytes, needed_bytes(device, make_record(dtype, shape).second));
}

Tensor Tensor::empty(DType dtype, Shape shape, Device device) {
    const size_t bytes = needed_bytes(dtype, shape, device);
    return Tensor(dtype, std::move(shape), Buffer::allocate(device, bytes), 0, false);
}

Tensor Tensor::in_buffer(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, size_t offset_bytes) {
    return Tensor(dtype, std::move(shape), std::move(buffer), offset_bytes, false);
}

int64_t Tensor::n_elements() const { return ggml_nelements(handle_); }

uint8_t *Tensor::data() const {
    if (!is_host()) {
        throw UnsupportedError(
            "tensor", cat("the tensor is on ", device().name(), ", not in host memory: copy it with to(\"cpu\")"));
    }
    return static_cast<uint8_t *>(handle_->data);
}

void Tensor::copy_from_host(const void *source, size_t size_bytes) const {
    if (size_bytes != size_bytes_)
        throw ShapeError("tensor", cat("the source has ", size_bytes, " bytes instead of ", size_bytes_));
    if (buffer_->read_only()) throw UnsupportedError("tensor", "the tensor's memory is read-only");
    driver_call(device(), [&] { ggml_backend_tensor_set(handle_, source, 0, size_bytes); });
}

void Tensor::copy_to_host(void *target, size_t size_bytes) const {
    if (size_bytes != size_bytes_)
        throw ShapeError("tensor", cat("the target has ", size_bytes, " bytes instead of ", size_bytes_));
    driver_call(device(), [&] { ggml_backend_tensor_get(handle_, target, 0, size_bytes); });
}

Tensor Tensor::part(int64_t begin, int64_t end) const {
    if (shape_.empty() || begin < 0 || begin >= end || end > shape_[0])
        throw ShapeError("tensor", cat("part ", begin, ":", end, " is not inside 0:", shape_.empty() ? 0 : shape_[0]));
    Shape shape = shape_;
    shape[0] = end - begin;
    const size_t row = size_bytes_ / static_cast<size_t>(shape_[0]);
    return Tensor(dtype_, std::move(shape), buffer_, offset_bytes_ + row * static_cast<size_t>(begin), true);
}

Tensor Tensor::to(Device device) const {
    if (device == this->device()) return *this;
    Tensor copy = empty(dtype_, shape_, device);
    copy_to(copy);
    return copy;
}

void Tensor::copy_to(const Tensor &target) const {
    if (target.dtype_ != dtype_ || target.shape_ != shape_)
        throw InternalError("tensor", "copying to a tensor of another type or shape");
    driver_call(target.device().kind() == DeviceKind::cpu ? device() : target.device(),
                [&] { ggml_backend_tensor_copy(handle_, target.handle_); });
}

} // namespace quire
