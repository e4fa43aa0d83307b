// Products of one row with quantized matrices, and what stands around them: the norm before, and the gate or the sum after.
// A step of one row reads each weight once and waits for memory, if it does not wait for the next kernel.  On the CPU
// graph/stock/own_nodes.cpp computes it, on CUDA cuda/row_product.cuh.
//
// Sources: 0 a matrix {n_in, n_out} of q4_K, q6_K or q8_0; 1 x f32 {n_in}; 2 the weight of a norm (root mean square) f32 {n_in}, or
// nothing; 3 what is added f32 {n_out}, or nothing; 4 a second matrix, whose products the first's, activated, are multiplied
// with, or nothing.  Result f32 {n_out}.
#pragma once

#include "cuda/node_params.h"

namespace quire {

struct RowProduct {
    static constexpr uint32_t magic_number = 0x51525031;
    enum Gate : int32_t { none, silu, gelu_tanh };
    uint32_t magic = magic_number;
    int32_t is_normed = 0;
    float eps = 0;
    Gate gate = none; // of the first matrix's products where there is a second one
};

} // namespace quire
