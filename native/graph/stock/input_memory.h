// The memory of graph inputs: one buffer on the device, which every graph uses from its beginning, and a buffer in which
// the host writes them before one transfer.
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
    // Places the inputs of the graph.  A buffer that is too small is freed before a larger one is allocated, as the
    // device may not have room for both.  Graphs placed earlier are then void; ``before_moving`` must discard them.
    // CapacityError if memory is insufficient; then there is no buffer.
    void place(LoweredGraph &graph, const std::function<void()> &before_moving);
    // The memory where the host writes an input of a placed graph.
    template <class T> T *host(const ggml_tensor *input) const { return reinterpret_cast<T *>(host_bytes(input)); }
    size_t size_bytes() const { return size_bytes_; } // on the device
    // Sends all inputs for the graphs that run next.  The host may overwrite its copy once these have run.
    void send(const LoweredGraph &graph) const;

  private:
    struct FreeBuffer {
        void operator()(ggml_backend_buffer *) const;
    };
    using OwnedBuffer = std::unique_ptr<ggml_backend_buffer, FreeBuffer>;
    uint8_t *host_bytes(const ggml_tensor *input) const;
    const Backend &backend_;
    OwnedBuffer device_, host_; // host_: null if the host can write the device's memory
    size_t size_bytes_ = 0;
};

// The host memory with the fastest transfers to the device.
ggml_backend_buffer *new_transfer_buffer(const Backend &backend, size_t size_bytes);

} // namespace quire
