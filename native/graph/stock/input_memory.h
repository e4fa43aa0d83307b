// Where the inputs of graphs lie: one piece of memory on the device, which every graph fills from its beginning, and
// what the host writes before it is sent there in one transfer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/device.h"
#include "graph/stock/lowering.h"

struct ggml_backend_buffer;

namespace quire {

class InputMemory {
  public:
    explicit InputMemory(const Backend &backend) : backend_(backend) {}
    // Gives the graph's inputs their places.  Memory that is too small is freed before there is more of it, as a
    // device may not hold both: graphs that were placed before are void then, which ``before_moving`` is to see to.
    // CapacityError when there is not so much, and then there is none.
    void place(LoweredGraph &graph, const std::function<void()> &before_moving);
    // Memory in which the host writes an input of a placed graph.
    template <class T> T *host(const ggml_tensor *input) const { return reinterpret_cast<T *>(host_bytes(input)); }
    size_t size_bytes() const { return size_bytes_; } // on the device
    // Sends all inputs.  Those that the graphs run next read are these, and the host's may be changed when they have
    // run.
    void send(const LoweredGraph &graph) const;

  private:
    struct FreeBuffer {
        void operator()(ggml_backend_buffer *) const;
    };
    using OwnedBuffer = std::unique_ptr<ggml_backend_buffer, FreeBuffer>;
    uint8_t *host_bytes(const ggml_tensor *input) const;
    const Backend &backend_;
    OwnedBuffer device_, host_; // host_: null where the host sees the device's memory
    size_t size_bytes_ = 0;
};

// Memory of the host that transfers of the device are fastest with.
ggml_backend_buffer *new_transfer_buffer(const Backend &backend, size_t size_bytes);

} // namespace quire
