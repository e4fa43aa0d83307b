// Parameters of Quire's own operations in ggml's GGML_OP_CUSTOM nodes.  ggml knows nothing of such a node but the function that
// computes it on the CPU; the core and a device's module agree by what is in these headers.
#pragma once

#include <ggml.h>

#include <cstring>

namespace quire {

// They lie behind what ggml has there, from this number on.  `Params` begins with its own `magic`.
constexpr int first_param = 8;
template <class Params> void set_params(ggml_tensor *node, const Params &params) {
    static_assert(sizeof(params) <= GGML_MAX_OP_PARAMS - first_param * sizeof(int32_t));
    std::memcpy(node->op_params + first_param, &params, sizeof(params));
}

// Whether the node is of that operation.
template <class Params> bool get_params(const ggml_tensor *node, Params &params) {
    std::memcpy(static_cast<void *>(&params), node->op_params + first_param, sizeof(params));
    return node->op == GGML_OP_CUSTOM && params.magic == Params::magic_number;
}

} // namespace quire
