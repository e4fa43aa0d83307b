// Quire's own operations as nodes of ggml graphs, for devices whose modules have kernels for them.  The kernels are in
// native/cuda, which documents their inputs.  Such a device reports them by ggml_backend_supports_op.
#pragma once

#include <ggml-backend.h>

#include "cuda/batch_product.h"
#include "cuda/cache_heads.h"
#include "cuda/paged_attention.h"
#include "cuda/prompt_attention.h"
#include "cuda/row_product.h"

namespace quire {

// True if the device supports the node; always false with QUIRE_DEVICE_KERNELS=0.
bool has_own_node(ggml_backend *device, const ggml_tensor *node);

struct PagedSources {
    ggml_tensor *q, *k, *v, *tables, *spans, *sinks; // sinks may be null
};
ggml_tensor *paged_attention_node(ggml_context *context, const PagedSources &sources, const PagedAttention &params);
ggml_tensor *prompt_attention_node(ggml_context *context, const PagedSources &sources, const PromptAttention &params);

struct HeadSources {
    ggml_tensor *q, *k, *v, *k_pool, *v_pool, *slots, *positions, *q_weight, *k_weight,
        *factors; // the last three may be null
};
ggml_tensor *cache_heads_node(ggml_context *context, const HeadSources &sources, const CacheHeads &params);

// `norm`: the weight of a norm; may be null.
ggml_tensor *row_product_node(ggml_context *context, ggml_tensor *matrix, ggml_tensor *x, ggml_tensor *norm,
                              const RowProduct &params);
// `matrix`: an arranged one; `norm` as above.
ggml_tensor *batch_product_node(ggml_context *context, ggml_tensor *matrix, ggml_tensor *x, ggml_tensor *norm,
                                const BatchProduct &params);

} // namespace quire
