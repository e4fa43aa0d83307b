// Products of a few rows with quantized matrices, on tensor cores.  The matrix is a copy in the order in which
// `mma` wants it (cuda/arranged_matrix.h).  On the CPU graph/stock/own_nodes.cpp computes it, on CUDA
// cuda/batch_product.cuh.
//
// Sources: 0 an arranged matrix i8 {bytes}; 1 x f32 {n_in, n_rows}; 2 the weight of an RMS norm f32 {n_in}, optional;
// 3 a summand f32 {n_out, n_rows}, optional.  Result: f32 {n_out, n_rows}.
#pragma once

#include "cuda/arranged_matrix.h"
#include "cuda/node_params.h"

namespace quire {

struct BatchProduct {
    static constexpr uint32_t magic_number = 0x51425031;
    static constexpr int most_rows = 64;
    uint32_t magic = magic_number;
    ArrangedType type = ArrangedType::q4_0;
    int32_t n_in = 0, n_out = 0;
    BatchPlan plan;
    int32_t is_normed = 0;
    float eps = 0;
};

} // namespace quire
