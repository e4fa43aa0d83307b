// A value that one piece of a trace makes and later ones read (graph/placement.h): where its rows lie meanwhile.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "core/tensor.h"
#include "graph/operations.h"

struct ggml_backend_buffer;
struct ggml_context;
struct ggml_tensor;

namespace quire {

struct Border {
    TraceShape shape;
    // Where it is wanted: what a device makes and reads again stays there.
    bool in_host = false, on_device = false;
    int first = 0, last = 0; // pieces that write and read it
    // Rows of f32, of the largest step; BorderMemory makes them.
    float *host = nullptr;
    std::optional<Tensor> device;

    int64_t row_floats() const;
    // The first `lead` rows on the device, as ggml sees them.
    ggml_tensor *device_rows(ggml_context *context, int64_t lead) const;
};

// The operation that brings such a value into another piece.  `from_device`: from the device's own memory.
std::shared_ptr<const OperationKind> carried(std::shared_ptr<const Border> border, bool from_device);

using Borders = std::vector<std::shared_ptr<Border>>;

// Memory of borders, which share it where they are not needed at once.
class BorderMemory {
  public:
    BorderMemory() = default;
    // Both: of those that are wanted there.  CapacityError when there is no memory.
    // `device`: whose transfers the host's memory is for.
    static BorderMemory in_host(const Borders &borders, const Backend &device, int max_rows, int max_logit_rows);
    static BorderMemory on_device(const Borders &borders, const Backend &device, int max_rows, int max_logit_rows);
    size_t size_bytes() const { return size_bytes_; }

  private:
    struct FreeBuffer {
        void operator()(ggml_backend_buffer *) const;
    };
    std::unique_ptr<ggml_backend_buffer, FreeBuffer> host_;
    std::shared_ptr<Buffer> device_;
    size_t size_bytes_ = 0;
};

} // namespace quire
