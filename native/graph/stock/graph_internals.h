// Work that ggml's scheduler does on graphs, for which ggml has no public function.
#pragma once

#include "core/device.h"
#include "graph/stock/lowering.h"

struct ggml_gallocr;

namespace quire {

// Let the device reorder the graph, allocate it with the lifetimes that the device asks for, and name it, so that the
// device may know that a graph which comes again is the same.  False when memory is lacking.
bool allocate_graph(const Backend &backend, ggml_gallocr *allocator, LoweredGraph &graph);
// Bytes of the buffer that this would need, of which none is taken.
size_t measure_graph(const Backend &backend, ggml_gallocr *allocator, LoweredGraph &graph);

} // namespace quire
