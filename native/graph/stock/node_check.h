// Finds nodes that a device computes wrongly (QUIRE_COMPARE_NODES=1 in the environment).  Every node of a graph runs on
// the device and on the CPU, where each has memory of its own; those that differ are printed to standard error.  The
// first one is wrong, or its input was overwritten; later ones may only inherit the error.
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
