#include "kv/kv_store.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/array_room.h"
#include "core/device_faults.h"
#include "core/error.h"
#include "core/large_pages.h"
#include "core/system.h"

namespace quire {
namespace {

// Zeroed memory.  On the CPU fresh pages of the system are zero without being touched, so a large pool costs what is
// used.
std::shared_ptr<Buffer> zeroed(size_t size_bytes, Device device, Memory memory) {
    if (memory == Memory::measured) return Buffer::measured(device, size_bytes);
    if (device.kind() != DeviceKind::cpu) {
        std::shared_ptr<Buffer> buffer = Buffer::allocate(device, size_bytes);
        driver_call(device, [&] { ggml_backend_buffer_clear(buffer->handle(), 0); });
        return buffer;
    }
    std::shared_ptr<uint8_t> pages = new_pages(size_bytes, false);
    if (!pages) throw CapacityError("kv_store", cat("out of memory: ", size_bytes, " bytes of cache"));
    // A large pool is read all over, and each small page costs a walk of the page table; a small one would be zeroed by
    // the megabyte for a few tokens.
    if (size_bytes >= size_t{128} << 20) advise_large_pages(pages.get(), size_bytes);
    return Buffer::borrow(pages.get(), size_bytes, false, pages);
}

// Blocks of which attention on devices reads a multiple: 256 tokens.
constexpr size_t device_blocks = 256 / kv_block_tokens;

// Gives the whole pages inside back.  On a device memory stays where it is.
void discard_bytes(const Tensor &tensor, size_t first, size_t bytes) {
    if (tensor.is_host()) give_back(tensor.data() + first, bytes);
}

} // namespace

KvStore::KvStore(CacheLayout layout, CacheSizes sizes, Device device, ggml_backend *queue, KeptParts kept,
                 Memory memory)
    : layout_(std::move(layout)), sizes_(std::move(sizes)), kept_(std::move(kept)), queue_(queue),
      rows_(layout_.layers().size()), states_(layout_.layers().size()) {
    if (sizes_.n_blocks.size() != layout_.groups().size())
        throw InternalError("kv_store", "sizes and groups of the cache differ in number");
    for (int n : sizes_.n_blocks)
        if (n < 2) throw CapacityError("kv_store", cat("n_blocks is ", n, ": expected at least 2"));
    if (layout_.state_bytes() > 0 && sizes_.n_states < 2)
        throw CapacityError("kv_store", cat("n_states is ", sizes_.n_states, ": expected at least 2"));
    const int n_layer = static_cast<int>(layout_.layers().size());
    auto n_blocks = [&](int layer) {
        const auto n = static_cast<size_t>(sizes_.n_blocks[static_cast<size_t>(*layout_.group_of(layer))]);
        return device.kind() == DeviceKind::cpu ? n : (n + device_blocks - 1) / device_blocks * device_blocks;
    };
    const int64_t n_slots = sizes_.n_states + (device.kind() == DeviceKind::cpu ? 0 : 1);
    std::vector<size_t> sizes_bytes; // by array, in the order in which they are taken below
    for (int layer = 0; layer < n_layer; ++layer) {
        const CacheSpec &spec = layout_.layers()[static_cast<size_t>(layer)];
        if (spec.rows && kept_.has_rows(layer))
            for (const size_t block_bytes : {layout_.k_block_bytes(layer), layout_.v_block_bytes(layer)})
                if (block_bytes > 0) sizes_bytes.push_back(block_bytes * n_blocks(layer));
        for (int i = 0; i < static_cast<int>(spec.states.size()); ++i)
            if (kept_.has_state({layer, i}))
                sizes_bytes.push_back(static_cast<size_t>(spec.states[static_cast<size_t>(i)].n * n_slots) *
                                      sizeof(float));
    }
    ArrayRoom room(device, sizes_bytes, [&](size_t bytes) { return zeroed(bytes, device, memory); });
    size_bytes_ = room.size_bytes();
    auto take = [&](DType dtype, Shape shape) {
        const auto [buffer, offset] = room.next();
        return Tensor::in_buffer(dtype, std::move(shape), buffer, offset);
    };
    const CacheTypes types = layout_.types();
    for (int layer = 0; layer < n_layer; ++layer) {
        const auto at = static_cast<size_t>(layer);
        const CacheSpec &spec = layout_.layers()[at];
        auto array = [&](DType dtype, int head_dim) {
            const auto n = static_cast<int64_t>(n_blocks(layer)) * spec.rows->block_rows();
            // Codes and scales in one: a row is as many bytes as a token takes.
            const bool is_coded = is_quantized(dtype);
            const auto bytes = static_cast<int64_t>(cache_head_bytes(dtype, head_dim, 1));
            return take(is_coded ? DType::i8 : dtype, {n, spec.rows->n_kv_head * (is_coded ? bytes : head_dim)});
        };
        if (spec.rows && kept_.has_rows(layer)) {
            Tensor k = array(types.k, spec.rows->head_dim);
            Tensor v = spec.rows->v_in_k ? k : array(types.v, spec.rows->v_head_dim);
            rows_[at] = Rows{k, v, layout_.k_block_bytes(layer), layout_.v_block_bytes(layer)};
        }
        for (int i = 0; i < static_cast<int>(spec.states.size()); ++i) {
            states_[at].emplace_back();
            if (kept_.has_state({layer, i}))
                states_[at].back() = take(DType::f32, {n_slots, spec.states[static_cast<size_t>(i)].n});
        }
    }
}

void KvStore::check_block(int group, int block) const {
    const bool known = group >= 0 && static_cast<size_t>(group) < sizes_.n_blocks.size();
    if (!known || block < 0 || block >= sizes_.n_blocks[static_cast<size_t>(group)])
        throw InternalError("kv_store", cat("no block ", block, " in group ", group));
}

void KvStore::check_state(int slot) const {
    if (slot < 0 || slot >= sizes_.n_states)
        throw InternalError("kv_store",
                            cat("state slot ", slot, " is out of range: expected less than ", sizes_.n_states));
}

// Some devices (Vulkan) may execute pending copies in any order.
void KvStore::keep_order(Place from, Place to) const {
    constexpr size_t most = 64; // then those that have long been made are forgotten, too
    const bool meet = std::ranges::any_of(touched_, [&](const Place &other) { return other == from || other == to; });
    if (meet || touched_.size() >= most) {
        ggml_backend_synchronize(queue_);
        touched_.clear();
    }
    touched_.push_back(from);
    touched_.push_back(to);
}

// Copies within the memory of the store, be it the host's or a device's.
void KvStore::copy(const std::vector<Copy> &copies, Place from, Place to) const {
    if (copies.empty()) return;
    const std::shared_ptr<Buffer> &buffer = copies.front().tensor->buffer();
    if (buffer->is_host()) {
        for (const Copy &c : copies) std::memcpy(c.tensor->data() + c.to, c.tensor->data() + c.from, c.bytes);
        return;
    }
    ggml_init_params params{ggml_tensor_overhead() * copies.size() * 2, nullptr, true};
    std::unique_ptr<ggml_context, void (*)(ggml_context *)> context(ggml_init(params), ggml_free);
    if (!context) throw CapacityError("kv_store", "out of memory: records of a copy");
    auto part = [&](const Copy &c, size_t offset) {
        ggml_tensor *pool = c.tensor->handle();
        ggml_tensor *bytes = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, static_cast<int64_t>(c.bytes));
        bytes->view_src = pool;
        bytes->view_offs = offset;
        bytes->buffer = pool->buffer;
        bytes->data = static_cast<char *>(pool->data) + offset;
        return bytes;
    };
    driver_call(buffer->device(), [&] {
        if (queue_ != nullptr) keep_order(from, to);
        for (const Copy &c : copies) {
            ggml_tensor *source = part(c, c.from), *target = part(c, c.to);
            if (queue_ != nullptr)
                ggml_backend_tensor_copy_async(queue_, queue_, source, target);
            else
                ggml_backend_tensor_copy(source, target);
        }
    });
}

void KvStore::copy_block(int group, int from, int to) const {
    check_block(group, from);
    check_block(group, to);
    std::vector<Copy> copies;
    for (int layer : layout_.groups()[static_cast<size_t>(group)].layers) {
        if (!kept_.has_rows(layer)) continue;
        const Rows &r = rows(layer);
        const auto source = static_cast<size_t>(from), target = static_cast<size_t>(to);
        copies.push_back({&r.k, source * r.k_block_bytes, target * r.k_block_bytes, r.k_block_bytes});
        if (r.v_block_bytes > 0)
            copies.push_back({&r.v, source * r.v_block_bytes, target * r.v_block_bytes, r.v_block_bytes});
    }
    copy(copies, {group, from}, {group, to});
}

void KvStore::discard_block(int group, int block) const {
    check_block(group, block);
    for (int layer : layout_.groups()[static_cast<size_t>(group)].layers) {
        if (!kept_.has_rows(layer)) continue;
        const Rows &r = rows(layer);
        discard_bytes(r.k, static_cast<size_t>(block) * r.k_block_bytes, r.k_block_bytes);
        discard_bytes(r.v, static_cast<size_t>(block) * r.v_block_bytes, r.v_block_bytes);
    }
}

void KvStore::copy_state(int from, int to) const {
    check_state(from);
    check_state(to);
    std::vector<Copy> copies;
    for_states([&](const Tensor &state, size_t bytes) {
        copies.push_back({&state, static_cast<size_t>(from) * bytes, static_cast<size_t>(to) * bytes, bytes});
    });
    copy(copies, {-1, from}, {-1, to});
}

void KvStore::discard_state(int slot) const {
    check_state(slot);
    for_states(
        [&](const Tensor &state, size_t bytes) { discard_bytes(state, static_cast<size_t>(slot) * bytes, bytes); });
}

} // namespace quire
