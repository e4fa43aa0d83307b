// Parameters of Quire's own operations in ggml's GGML_OP_CUSTOM nodes.  All that ggml knows about such a node is the
// function that computes it on the CPU.  The core and a device's module share these headers.
#pragma once

#include <ggml.h>

#include <cstring>

namespace quire {

// The index in op_params where Quire's parameters start, after ggml's own.  `Params` starts with its `magic` number.
constexpr int first_param = 8;
template <class Params> void set_params(ggml_tensor *node, const Params &params) {
    static_assert(sizeof(params) <= GGML_MAX_OP_PARAMS - first_param * sizeof(int32_t));
    std::memcpy(node->op_params + first_param, &params, sizeof(params));
}

// Read the parameters of a node; return false if it is not a node of this operation.
template <class Params> bool get_params(const ggml_tensor *node, Params &params) {
    std::memcpy(static_cast<void *>(&params), node->op_params + first_param, sizeof(params));
    return node->op == GGML_OP_CUSTOM && params.magic == Params::magic_number;
}

} // namespace quire
