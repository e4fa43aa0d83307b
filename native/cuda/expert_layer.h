// A layer of experts, from the rows and the choice of experts to the weighted sum, with arranged matrices
// (cuda/arranged_matrix.h).  On the CPU graph/stock/expert_layers.cpp computes it, on CUDA cuda/expert_layer.cuh.
//
// Sources: 0 x f32 {n_in, n_tokens}; 1 numbers of the chosen experts i32 {n_used, n_tokens}, with any distance between
// tokens; 2 their weights f32 {1, n_used, n_tokens}; 3 a summand f32 {n_in, n_tokens}, optional; 4 matrices of the gates;
// 5 those of `up` {n_in, n_inner}; 6 those of `down` {n_inner, n_in}; 7, 8, 9 biases of these f32
// {n, n_expert}, optional.  4, 5 and 6 are i8 {bytes}, one arranged matrix after another.  Result: f32 {n_in, n_tokens}.
#pragma once

#include "cuda/arranged_matrix.h"

namespace quire {

// Types for which there are kernels.
constexpr bool is_expert_type(ArrangedType type) {
    return type == ArrangedType::q8_0 || type == ArrangedType::q4_k || type == ArrangedType::q6_k ||
           type == ArrangedType::mxfp4 || type == ArrangedType::bf16;
}

struct ExpertLayer {
    static constexpr uint32_t magic_number = 0x51584C31;
    static constexpr int most_experts = 1024, most_choices = 8192, n_variants = 2;
    enum Unit : uint8_t { silu, gelu_tanh, silu_limited }; // silu_limited: that of gpt-oss
    uint32_t magic = magic_number;
    uint8_t up_type = 0, down_type = 0; // ArrangedType; gates have the type of `up`
    uint8_t up_variant = 0, down_variant = 0; // decide the order of sums
    int32_t n_inner = 0, n_expert = 0;
    float alpha = 0, limit = 0; // parameters of silu_limited
    Unit unit = silu;
    uint8_t weighs_input = 0, unused[2] = {};
};
// A guess.
constexpr int default_expert_variant(int64_t n_out) { return n_out >= 2048 ? 1 : 0; }

} // namespace quire
