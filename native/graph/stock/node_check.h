// To find what a device computes wrongly (QUIRE_COMPARE_NODES=1 in the environment): the nodes of a graph run one by
// one on the device, and on the CPU with memory of its own for each.  Standard error is told of those that differ:
// the first one is wrong, or was computed from memory that another one has taken; what follows was computed with it.
#pragma once

#include "core/device.h"
#include "core/environment.h"

struct ggml_cgraph;

namespace quire {

inline bool compares_nodes() {
    static const bool on = is_switched_on("QUIRE_COMPARE_NODES");
    return on;
}

void run_and_compare(const Backend &backend, ggml_cgraph *graph);

} // namespace quire
