#include "graph/stock/node_check.h"

#include <ggml-backend.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"

namespace quire {
namespace {

std::vector<float> numbers_of(ggml_tensor *tensor) {
    const auto n = static_cast<size_t>(ggml_nelements(tensor));
    std::vector<uint8_t> bytes(ggml_nbytes(tensor));
    ggml_backend_tensor_get(tensor, bytes.data(), 0, bytes.size());
    std::vector<float> numbers(n);
    if (tensor->type == GGML_TYPE_F32)
        std::memcpy(numbers.data(), bytes.data(), n * sizeof(float));
    else if (const auto to_float = ggml_get_type_traits(tensor->type)->to_float; to_float != nullptr)
        to_float(bytes.data(), numbers.data(), static_cast<int64_t>(n));
    else // integers: compare bytes
        numbers.assign(bytes.begin(), bytes.end());
    return numbers;
}

struct Found {
    std::string device;
    int n_nodes = 0, n_wrong = 0;
};

void tell(const std::string &device, int i, const ggml_tensor *node, double deviation, size_t first) {
    std::fprintf(stderr, "[node] %s: %d %s (%s) %s {%lld, %lld, %lld, %lld}: %.3g from number %zu on", device.c_str(),
                 i, ggml_op_desc(node), node->name, ggml_type_name(node->type), static_cast<long long>(node->ne[0]),
                 static_cast<long long>(node->ne[1]), static_cast<long long>(node->ne[2]),
                 static_cast<long long>(node->ne[3]), deviation, first);
    for (const ggml_tensor *source : node->src)
        if (source != nullptr)
            std::fprintf(stderr, "; %s %s {%lld, %lld, %lld, %lld} strides {%zu, %zu, %zu, %zu}", ggml_op_desc(source),
                         ggml_type_name(source->type), static_cast<long long>(source->ne[0]),
                         static_cast<long long>(source->ne[1]), static_cast<long long>(source->ne[2]),
                         static_cast<long long>(source->ne[3]), source->nb[0], source->nb[1], source->nb[2],
                         source->nb[3]);
    std::fprintf(stderr, "\n");
}

bool compared(int i, ggml_tensor *ours, ggml_tensor *theirs, void *data) {
    Found &found = *static_cast<Found *>(data);
    ++found.n_nodes;
    if (!ggml_is_contiguous(ours)) return true; // a view of another node's result
    const std::vector<float> a = numbers_of(ours), b = numbers_of(theirs);
    double norm = 0, difference = 0;
    size_t first = a.size();
    for (size_t k = 0; k < a.size(); ++k) {
        if (std::isnan(a[k]) && std::isnan(b[k])) continue; // unwritten memory
        if (a[k] == b[k] && std::isinf(a[k])) continue; // masked
        norm += static_cast<double>(b[k]) * b[k];
        difference += (static_cast<double>(a[k]) - b[k]) * (static_cast<double>(a[k]) - b[k]);
        const bool is_far = !(std::abs(a[k] - b[k]) <= 1e-2F * (std::abs(b[k]) + 0.1F));
        if (is_far && first == a.size()) first = k;
    }
    const double deviation = std::sqrt(difference / (norm > 0 ? norm : 1));
    if (deviation <= 2e-3) return true;
    ++found.n_wrong;
    tell(found.device, i, ours, deviation, first);
    return true;
}

} // namespace

void run_and_compare(const Backend &backend, ggml_cgraph *graph) {
    ggml_backend_synchronize(backend.handle());
    const Backend cpu(find_device("CPU"), 1);
    Found found{backend.device().name()};
    if (!ggml_backend_compare_graph_backend(backend.handle(), cpu.handle(), graph, compared, &found, nullptr, 0))
        throw CapacityError("graph", "out of memory: copy of a graph");
    std::fprintf(stderr, "[node] %s: %d of %d nodes differ\n", found.device.c_str(), found.n_wrong, found.n_nodes);
}

} // namespace quire
