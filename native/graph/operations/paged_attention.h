// Attention by block tables as a node of ggml's: cuda/paged_attention.h says what it reads.  Devices whose modules have kernels
// for it say that they support it.
#pragma once

#include <ggml.h>

#include "cuda/paged_attention.h"

namespace quire {

// `sinks` may be null.
ggml_tensor *paged_attention_node(ggml_context *context, ggml_tensor *q, ggml_tensor *k, ggml_tensor *v,
                                  ggml_tensor *tables, ggml_tensor *spans, ggml_tensor *sinks,
                                  const PagedAttention &params);

} // namespace quire
