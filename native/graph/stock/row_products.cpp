#include "graph/stock/row_products.h"

#include "core/environment.h"
#include "graph/stock/device_weights.h"
#include "graph/stock/own_nodes.h"
#include "graph/stock/stock_parts.h"

namespace quire {
namespace {

enum Source { matrix_source, x_source, norm_source, added_source, second_source };

// Callers may request the hidden state, so it must be computed.
StockNormed source_of(const StockGraph &graph, ggml_tensor *x) {
    const auto hidden = static_cast<size_t>(graph.trace.hidden);
    const bool is_hidden = graph.trace.hidden >= 0 && hidden < graph.values.size() && graph.values[hidden] == x;
    return is_hidden ? StockNormed{x} : before_norm(x);
}

// Add a source to a node of this operation, which has no other summand; null if the device does not support that.
template <class Params> ggml_tensor *with_sum(const StockGraph &graph, ggml_tensor *product, ggml_tensor *added) {
    Params params;
    if (!get_params(product, params) || product->src[added_source] != nullptr) return nullptr;
    product->src[added_source] = added;
    if (has_own_node(graph.device, product)) return product;
    product->src[added_source] = nullptr;
    return nullptr;
}

// Kernels for the other types were never timed on a card.
bool is_wanted(ggml_type type) {
    return type == GGML_TYPE_Q4_K || type == GGML_TYPE_Q6_K || type == GGML_TYPE_Q8_0 ||
           is_switched_on("QUIRE_ROW_PRODUCTS");
}

bool is_row(const ggml_tensor *x) { return ggml_nrows(x) == 1 && ggml_is_contiguous(x); }

} // namespace

ggml_tensor *row_product(StockGraph &graph, ggml_tensor *matrix, ggml_tensor *x) {
    if (graph.device == nullptr || !is_row(x) || !is_wanted(matrix->type)) return nullptr;
    const StockNormed before = source_of(graph, x);
    RowProduct params;
    params.is_normed = static_cast<int32_t>(before.is_normed);
    params.eps = before.eps;
    ggml_tensor *made = row_product_node(graph.context(), matrix, before.x, before.weight, params);
    return has_own_node(graph.device, made) ? made : nullptr;
}

ggml_tensor *batch_product(StockGraph &graph, ggml_tensor *matrix, ggml_tensor *x) {
    const int64_t n_rows = ggml_nrows(x);
    if (graph.device == nullptr || graph.copies == nullptr || n_rows < 2 || n_rows > BatchProduct::most_rows)
        return nullptr;
    const BatchMatrices::Arranged *arranged = graph.copies->arranged(matrix);
    if (arranged == nullptr || !ggml_is_contiguous(x)) return nullptr;
    const StockNormed before = source_of(graph, x);
    if (!ggml_is_contiguous(before.x)) return nullptr;
    BatchProduct params = arranged->params;
    params.is_normed = static_cast<int32_t>(before.is_normed);
    params.eps = before.eps;
    ggml_tensor *made = batch_product_node(graph.context(), arranged->tensor.handle(), before.x, before.weight, params);
    return has_own_node(graph.device, made) ? made : nullptr;
}

ggml_tensor *row_product_plus(StockGraph &graph, ggml_tensor *product, ggml_tensor *added) {
    if (is_row(added)) return with_sum<RowProduct>(graph, product, added);
    const bool is_like =
        ggml_are_same_shape(product, added) && added->type == GGML_TYPE_F32 && ggml_is_contiguous(added);
    return is_like ? with_sum<BatchProduct>(graph, product, added) : nullptr;
}

ggml_tensor *gated_row_product(StockGraph &graph, ggml_tensor *gate, ggml_tensor *up, Activation activation) {
    RowProduct params, of_up;
    if (!get_params(gate, params) || !get_params(up, of_up) || gate == up) return nullptr;
    if (activation != Activation::silu && activation != Activation::gelu_tanh) return nullptr;
    if (params.gate != RowProduct::none || of_up.gate != RowProduct::none) return nullptr;
    for (Source source : {x_source, norm_source})
        if (gate->src[source] != up->src[source]) return nullptr;
    if (gate->src[added_source] != nullptr || up->src[added_source] != nullptr || params.eps != of_up.eps)
        return nullptr;
    gate->src[second_source] = up->src[matrix_source];
    RowProduct gated = params;
    gated.gate = activation == Activation::silu ? RowProduct::silu : RowProduct::gelu_tanh;
    set_params(gate, gated);
    if (has_own_node(graph.device, gate)) return gate;
    gate->src[second_source] = nullptr;
    set_params(gate, params);
    return nullptr;
}

} // namespace quire
