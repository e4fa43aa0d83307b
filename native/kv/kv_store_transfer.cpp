// Contents of blocks and states on their way out of a store and back.
#include <ggml-backend.h>

#include <cstring>

#include "core/device_faults.h"
#include "kv/kv_store.h"

namespace quire {

std::vector<KvStore::Part> KvStore::parts_of_block(int group, int block) const {
    check_block(group, block);
    const auto at = static_cast<size_t>(block);
    std::vector<Part> parts;
    size_t offset = 0;
    for (int layer : layout_.groups()[static_cast<size_t>(group)].layers) {
        const size_t k_bytes = layout_.k_block_bytes(layer), v_bytes = layout_.v_block_bytes(layer);
        if (kept_.has_rows(layer)) {
            parts.push_back({&rows(layer).k, at * k_bytes, offset, k_bytes});
            if (v_bytes > 0) parts.push_back({&rows(layer).v, at * v_bytes, offset + k_bytes, v_bytes});
        }
        offset += k_bytes + v_bytes;
    }
    return parts;
}

std::vector<KvStore::Part> KvStore::parts_of_state(int slot) const {
    check_state(slot);
    std::vector<Part> parts;
    size_t offset = 0;
    for (size_t layer = 0; layer < states_.size(); ++layer) {
        const std::vector<CacheState> &states = layout_.layers()[layer].states;
        for (size_t i = 0; i < states.size(); ++i) {
            const size_t bytes = static_cast<size_t>(states[i].n) * sizeof(float);
            if (states_[layer][i])
                parts.push_back({&*states_[layer][i], static_cast<size_t>(slot) * bytes, offset, bytes});
            offset += bytes;
        }
    }
    return parts;
}

void KvStore::read(const std::vector<Part> &parts, uint8_t *to) const {
    if (parts.empty()) return;
    const std::shared_ptr<Buffer> &buffer = parts.front().tensor->buffer();
    if (buffer->is_host()) {
        for (const Part &part : parts) std::memcpy(to + part.offset, part.tensor->data() + part.at, part.bytes);
        return;
    }
    driver_call(buffer->device(), [&] {
        if (queue_ != nullptr) ggml_backend_synchronize(queue_); // copies that it was asked for come first
        touched_.clear();
        for (const Part &part : parts) {
            ggml_tensor *source = part.tensor->handle();
            if (queue_ != nullptr)
                ggml_backend_tensor_get_async(queue_, source, to + part.offset, part.at, part.bytes);
            else
                ggml_backend_tensor_get(source, to + part.offset, part.at, part.bytes);
        }
        if (queue_ != nullptr) ggml_backend_synchronize(queue_);
    });
}

void KvStore::write(const std::vector<Part> &parts, const uint8_t *from) const {
    if (parts.empty()) return;
    const std::shared_ptr<Buffer> &buffer = parts.front().tensor->buffer();
    if (buffer->is_host()) {
        for (const Part &part : parts) std::memcpy(part.tensor->data() + part.at, from + part.offset, part.bytes);
        return;
    }
    driver_call(buffer->device(), [&] {
        if (queue_ != nullptr) ggml_backend_synchronize(queue_);
        touched_.clear();
        for (const Part &part : parts) {
            ggml_tensor *target = part.tensor->handle();
            if (queue_ != nullptr)
                ggml_backend_tensor_set_async(queue_, target, from + part.offset, part.at, part.bytes);
            else
                ggml_backend_tensor_set(target, from + part.offset, part.at, part.bytes);
        }
        if (queue_ != nullptr) ggml_backend_synchronize(queue_); // `from` may go
    });
}

void KvStore::read_block(int group, int block, uint8_t *to) const { read(parts_of_block(group, block), to); }
void KvStore::write_block(int group, int block, const uint8_t *from) const {
    write(parts_of_block(group, block), from);
}
void KvStore::read_state(int slot, uint8_t *to) const { read(parts_of_state(slot), to); }
void KvStore::write_state(int slot, const uint8_t *from) const { write(parts_of_state(slot), from); }

} // namespace quire
