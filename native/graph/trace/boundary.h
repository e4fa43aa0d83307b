// A value that one piece of a trace computes and later ones read (graph/run/placement.h), and its memory in between.
#pragma once

#include <memory>
#include <optional>

#include "core/tensor.h"
#include "graph/trace/trace.h"

namespace quire {

struct Boundary {
    TraceShape shape;
    // Where it is needed: a value that a device computes and reads again stays there.
    bool in_host = false, on_device = false;
    int first = 0, last = 0; // pieces that write and read it
    // Rows of f32, enough for the largest step; allocated by run/boundary_memory.h.
    float *host = nullptr;
    std::optional<Tensor> device;

    int64_t row_floats() const;
};

// The operation that brings such a value into another piece.  `from_device`: from the device's own memory.
std::shared_ptr<const OperationKind> carried(std::shared_ptr<const Boundary> boundary, bool from_device);

} // namespace quire
