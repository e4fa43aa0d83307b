// Work on graphs that ggml's scheduler does but no public function of ggml offers.
#pragma once

#include "core/device.h"
#include "graph/stock/lowering.h"

struct ggml_gallocr;

namespace quire {

// Lets the device reorder the graph, allocates it with the lifetimes that the device asks for, and gives it an id by
// which the device recognizes it when it runs again.  False if memory is insufficient.
bool allocate_graph(const Backend &backend, ggml_gallocr *allocator, LoweredGraph &graph);
// The size of the buffer that this would need; allocates nothing.
size_t measure_graph(const Backend &backend, ggml_gallocr *allocator, LoweredGraph &graph);

} // namespace quire
