// Products of one row with quantized matrices, fused with the norm before and the gate or the addition after.  A step
// of one row reads each weight once, so it is limited by memory bandwidth unless it waits for kernel launches.  On the
// CPU graph/stock/own_nodes.cpp computes it, on CUDA cuda/row_product.cuh.
//
// Sources: 0 a matrix {n_in, n_out} of q4_0, q8_0, q4_K, q5_K, q6_K, f16 or bf16; 1 x f32 {n_in}; 2 the weight of an RMS norm f32 {n_in},
// optional; 3 a summand f32 {n_out}, optional; 4 a second matrix, whose products are multiplied by the first one's
// activated products, optional.  Result: f32 {n_out}.
#pragma once

#include "cuda/node_params.h"

namespace quire {

struct RowProduct {
    static constexpr uint32_t magic_number = 0x51525031;
    enum Gate : int32_t { none, silu, gelu_tanh };
    uint32_t magic = magic_number;
    int32_t is_normed = 0;
    float eps = 0;
    Gate gate = none; // activation of the first matrix's products if there is a second matrix
};

} // namespace quire
