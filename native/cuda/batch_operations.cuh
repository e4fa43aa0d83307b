#pragma once

#include "common.cuh"
#include "cuda/batch_product.h"

bool quire_batch_supported(int device, const ggml_tensor *op, const quire::BatchProduct &params);
void quire_batch_compute(ggml_backend_cuda_context &ctx, ggml_tensor *dst, const quire::BatchProduct &params);
