#include "graph/operations/row_products.h"

#include <cstring>

#include "graph/operations/own_nodes.h"

namespace quire {
namespace {

enum Source { matrix_source, x_source, norm_source, added_source, second_source };

struct Normed {
    ggml_tensor *x, *weight = nullptr;
    bool is_normed = false;
    float eps = 0;
};

// What the row was before its norm.  The hidden state that callers may ask for has to be made in any case.
Normed before_norm(const StockGraph &graph, ggml_tensor *x) {
    const int hidden = graph.trace.hidden;
    if (hidden >= 0 && static_cast<size_t>(hidden) < graph.values.size() &&
        graph.values[static_cast<size_t>(hidden)] == x)
        return {x};
    Normed found{x};
    ggml_tensor *norm = x;
    if (x->op == GGML_OP_MUL && x->src[0]->op == GGML_OP_RMS_NORM && ggml_nelements(x->src[1]) == x->ne[0]) {
        found.weight = x->src[1];
        norm = x->src[0];
    }
    if (norm->op != GGML_OP_RMS_NORM) return {x};
    found.x = norm->src[0];
    found.is_normed = true;
    std::memcpy(&found.eps, norm->op_params, sizeof(found.eps));
    return found;
}

bool is_row(const ggml_tensor *x) { return ggml_nrows(x) == 1 && ggml_is_contiguous(x); }

} // namespace

ggml_tensor *row_product(StockGraph &graph, ggml_tensor *matrix, ggml_tensor *x) {
    if (graph.flash == nullptr || !is_row(x)) return nullptr;
    const Normed before = before_norm(graph, x);
    RowProduct params;
    params.is_normed = static_cast<int32_t>(before.is_normed);
    params.eps = before.eps;
    ggml_tensor *made = row_product_node(graph.context(), matrix, before.x, before.weight, params);
    return has_own_node(graph.flash, made) ? made : nullptr;
}

ggml_tensor *row_product_plus(StockGraph &graph, ggml_tensor *product, ggml_tensor *added) {
    RowProduct params;
    if (!get_params(product, params) || product->src[added_source] != nullptr || !is_row(added)) return nullptr;
    product->src[added_source] = added;
    if (has_own_node(graph.flash, product)) return product;
    product->src[added_source] = nullptr;
    return nullptr;
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
    if (has_own_node(graph.flash, gate)) return gate;
    gate->src[second_source] = nullptr;
    set_params(gate, params);
    return nullptr;
}

} // namespace quire
