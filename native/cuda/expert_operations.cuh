#pragma once

#include "common.cuh"
#include "cuda/expert_layer.h"
#include "cuda/node_params.h"

bool quire_experts_supported(int device, const ggml_tensor *op, const quire::ExpertLayer &layer);
void quire_experts_compute(ggml_backend_cuda_context &ctx, ggml_tensor *dst, const quire::ExpertLayer &layer);
