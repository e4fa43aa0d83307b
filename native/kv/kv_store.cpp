#include "kv/kv_store.h"

#include <ggml-backend.h>
#include <sys/mman.h>

#include <cstring>

#include "core/error.h"
#include "core/large_pages.h"
#include "kv/kv_spec.h"

namespace quire {
namespace {

size_t block_bytes_of(DType dtype, int n_kv_head, int head_dim) {
    return kv_head_bytes(dtype, head_dim, kv_store_block_tokens) * static_cast<size_t>(n_kv_head);
}

size_t aligned(size_t bytes) {
    return (bytes + tensor_alignment_bytes - 1) / tensor_alignment_bytes * tensor_alignment_bytes;
}

// Zeroed memory.  On the CPU fresh pages of the system are zero without being touched, so a large pool costs what is used.
std::shared_ptr<Buffer> zeroed(size_t size_bytes, Device device) {
    if (device.kind() != DeviceKind::cpu) {
        std::shared_ptr<Buffer> buffer = Buffer::allocate(device, size_bytes);
        ggml_backend_buffer_clear(buffer->handle(), 0);
        return buffer;
    }
    void *pages = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        throw CapacityError("kv_store", cat(size_bytes, " bytes of cache must fit in memory but do not"));
    // A large pool is read all over, and each small page costs a walk of the page table; a small one would be zeroed by
    // the megabyte for a few tokens.
    if (size_bytes >= size_t{128} << 20) advise_large_pages(pages, size_bytes);
    std::shared_ptr<void> owner(pages, [size_bytes](void *p) { munmap(p, size_bytes); });
    return Buffer::borrow(pages, size_bytes, false, owner);
}

} // namespace

size_t KvStore::bytes_per_block(const std::vector<KvLayerSpec> &layers, DType dtype) {
    size_t sum = 0;
    for (const KvLayerSpec &spec : layers) {
        sum += block_bytes_of(dtype, spec.n_kv_head, spec.head_dim) +
               block_bytes_of(dtype, spec.n_kv_head, spec.v_head_dim);
    }
    return sum;
}

KvStore::KvStore(const std::vector<KvLayerSpec> &layers, DType dtype, int n_blocks, Device device)
    : dtype_(dtype), n_blocks_(n_blocks) {
    if (n_blocks < 2) throw CapacityError("kv_store", cat("n_blocks must be at least 2 but is ", n_blocks));
    size_t total = 0;
    for (const KvLayerSpec &spec : layers) {
        total += aligned(block_bytes_of(dtype, spec.n_kv_head, spec.head_dim) * static_cast<size_t>(n_blocks));
        total += aligned(block_bytes_of(dtype, spec.n_kv_head, spec.v_head_dim) * static_cast<size_t>(n_blocks));
    }
    buffer_ = zeroed(total, device);
    size_t offset = 0;
    auto array = [&](int n_kv_head, int head_dim) {
        const int64_t rows = int64_t{n_blocks} * n_kv_head * kv_store_block_tokens;
        // Codes and scales in one: a row is as many bytes as a token takes.
        const bool is_q8 = dtype == DType::q8_0;
        const int64_t bytes = static_cast<int64_t>(kv_head_bytes(dtype, head_dim, 1));
        Tensor tensor =
            Tensor::in_buffer(is_q8 ? DType::i8 : dtype, Shape{rows, is_q8 ? bytes : head_dim}, buffer_, offset);
        offset += aligned(tensor.size_bytes());
        return tensor;
    };
    for (const KvLayerSpec &spec : layers) {
        Tensor k = array(spec.n_kv_head, spec.head_dim);
        Tensor v = array(spec.n_kv_head, spec.v_head_dim);
        layers_.push_back({k, v, block_bytes_of(dtype, spec.n_kv_head, spec.head_dim),
                           block_bytes_of(dtype, spec.n_kv_head, spec.v_head_dim)});
    }
}

void KvStore::copy_block(int from, int to) const {
    if (from < 0 || to < 1 || from >= n_blocks_ || to >= n_blocks_) {
        throw InternalError("kv_store",
                            cat("blocks must be below ", n_blocks_, " but ", from, " is to be copied to ", to));
    }
    std::vector<uint8_t> staging;
    auto copy = [&](const Tensor &tensor, size_t bytes) {
        size_t source = static_cast<size_t>(from) * bytes, target = static_cast<size_t>(to) * bytes;
        if (tensor.is_host()) {
            std::memcpy(tensor.data() + target, tensor.data() + source, bytes);
            return;
        }
        staging.resize(bytes);
        ggml_backend_tensor_get(tensor.handle(), staging.data(), source, bytes);
        ggml_backend_tensor_set(tensor.handle(), staging.data(), target, bytes);
    };
    for (const Layer &layer : layers_) {
        copy(layer.k, layer.k_block_bytes);
        copy(layer.v, layer.v_block_bytes);
    }
}

} // namespace quire
