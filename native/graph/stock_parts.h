// Pieces of graphs of ggml's operators that several operations are made of.
#pragma once

#include <ggml.h>

#include "graph/operations.h"

namespace quire {

ggml_tensor *stock_activation(ggml_context *ctx, ggml_tensor *x, Activation activation);
ggml_tensor *stock_gate(ggml_context *ctx, ggml_tensor *gate, ggml_tensor *up, Activation activation);
// A mixture of experts: x [n_tokens, dim], scores [n_tokens, n_expert].
ggml_tensor *stock_mixture(ggml_context *ctx, ggml_tensor *x, ggml_tensor *scores, const op::Moe &moe);

} // namespace quire
