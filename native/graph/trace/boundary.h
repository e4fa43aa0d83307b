// A value that one piece of a trace makes and later ones read (graph/run/placement.h): where its rows lie meanwhile.
#pragma once

#include <memory>
#include <optional>

#include "core/tensor.h"
#include "graph/trace/trace.h"

namespace quire {

struct Boundary {
    TraceShape shape;
    // Where it is wanted: what a device makes and reads again stays there.
    bool in_host = false, on_device = false;
    int first = 0, last = 0; // pieces that write and read it
    // Rows of f32, of the largest step; run/boundary_memory.h makes them.
    float *host = nullptr;
    std::optional<Tensor> device;

    int64_t row_floats() const;
};

// The operation that brings such a value into another piece.  `from_device`: from the device's own memory.
std::shared_ptr<const OperationKind> carried(std::shared_ptr<const Boundary> boundary, bool from_device);

} // namespace quire
