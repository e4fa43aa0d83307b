// Memory for the values that pieces of a trace hand to each other.
#pragma once

#include <memory>
#include <vector>

#include "core/device.h"
#include "graph/trace/boundary.h"

struct ggml_backend_buffer;

namespace quire {

using Boundaries = std::vector<std::shared_ptr<Boundary>>;

// Memory of boundaries; those that are not needed at once share it.
class BoundaryMemory {
  public:
    BoundaryMemory() = default;
    // Allocate the boundaries that are needed there.  CapacityError if there is no memory.
    // `device`: the one whose transfers use the host's memory.
    static BoundaryMemory in_host(const Boundaries &boundaries, const Backend &device, int max_rows,
                                  int max_logit_rows);
    static BoundaryMemory on_device(const Boundaries &boundaries, const Backend &device, int max_rows,
                                    int max_logit_rows);
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
