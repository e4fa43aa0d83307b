#include "graph/stock/graph_internals.h"

// ggml's own headers, of the pinned version.
#include <ggml-alloc.h>
#include <ggml-backend-impl.h>
#include <ggml-impl.h>

#include <map>

#include "core/error.h"

namespace quire {
namespace {

// Tensors whose memory must stay theirs until a node has run, by node.
using Kept = std::map<ggml_tensor *, std::vector<ggml_tensor *>>;

Kept optimize(const Backend &backend, ggml_cgraph *graph) {
    Kept kept;
    ggml_backend *handle = backend.handle();
    if (handle->iface.graph_optimize == nullptr) return kept;
    ggml_backend_graph_optimize_params params{};
    params.user_data = &kept;
    params.add_alloc_dep = [](void *user_data, ggml_tensor *tensor, ggml_tensor *until) {
        (*static_cast<Kept *>(user_data))[until].push_back(tensor);
    };
    handle->iface.graph_optimize(handle, graph, &params);
    return kept;
}

// The graph with extra nodes that compute nothing: each reads the tensors kept for the node before it, so that the
// allocator does not reuse their memory earlier.
ggml_cgraph *with_kept(ggml_context *context, ggml_cgraph *graph, const Kept &kept, size_t n_nodes) {
    ggml_cgraph *longer = ggml_new_graph_custom(context, n_nodes, false);
    for (int i = 0; i < graph->n_leafs; ++i) longer->leafs[longer->n_leafs++] = graph->leafs[i];
    for (int i = 0; i < graph->n_nodes; ++i) {
        ggml_tensor *node = graph->nodes[i];
        longer->nodes[longer->n_nodes++] = node;
        const auto found = kept.find(node);
        if (found == kept.end()) continue;
        const std::vector<ggml_tensor *> &tensors = found->second;
        for (size_t first = 0; first < tensors.size(); first += GGML_MAX_SRC) {
            ggml_tensor *reader = ggml_view_tensor(context, tensors[first]);
            reader->op = GGML_OP_NONE;
            for (size_t j = first; j < std::min(tensors.size(), first + GGML_MAX_SRC); ++j)
                reader->src[j - first] = tensors[j];
            longer->nodes[longer->n_nodes++] = reader;
        }
    }
    return longer;
}

// Calls `use` for the graph as it is allocated.
template <class Use> auto with_lifetimes(const Backend &backend, LoweredGraph &graph, const Use &use) {
    graph.id = graph.graph->uid = ggml_graph_next_uid();
    const Kept kept = optimize(backend, graph.graph);
    if (kept.empty()) return use(graph.graph);
    size_t n_readers = 0;
    for (const auto &[node, tensors] : kept) n_readers += tensors.size();
    const auto n = static_cast<size_t>(std::max(graph.graph->n_nodes, graph.graph->n_leafs)) + n_readers;
    ggml_init_params params{ggml_graph_overhead_custom(n, false) + ggml_tensor_overhead() * (n_readers + 1), nullptr,
                            true};
    std::unique_ptr<ggml_context, FreeContext> context(ggml_init(params));
    if (!context) throw CapacityError("graph", "out of memory: records of a graph");
    return use(with_kept(context.get(), graph.graph, kept, n));
}

} // namespace

bool allocate_graph(const Backend &backend, ggml_gallocr *allocator, LoweredGraph &graph) {
    return with_lifetimes(backend, graph, [&](ggml_cgraph *all) { return ggml_gallocr_alloc_graph(allocator, all); });
}

size_t measure_graph(const Backend &backend, ggml_gallocr *allocator, LoweredGraph &graph) {
    return with_lifetimes(backend, graph, [&](ggml_cgraph *all) {
        size_t size_bytes = 0; // the only buffer's
        ggml_gallocr_reserve_n_size(allocator, all, nullptr, nullptr, &size_bytes);
        return size_bytes;
    });
}

} // namespace quire
