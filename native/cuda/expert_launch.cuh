// Chooses and launches the kernels of cuda/expert_layer.cuh.
#pragma once

#include "cuda/batch_launch.cuh"
#include "cuda/expert_layer.cuh"
#include "cuda/expert_layer.h"

namespace quire_cuda {

static_assert(most_experts == quire::ExpertLayer::most_experts && most_choices == quire::ExpertLayer::most_choices);

// Row tiles of a thread block, by how many tokens an expert has on average.
inline int expert_tiles(int n_choices, int n_experts) {
    return n_choices <= 4 * n_experts ? 1 : n_choices <= 12 * n_experts ? 2 : 8;
}
inline int expert_works(int n_choices, int n_experts) {
    return min(n_choices, n_experts) + n_choices / (8 * expert_tiles(n_choices, n_experts));
}

// Calls use(W(), variant, tiles), the last two as constants.
template <class W, class Use> void with_expert_shape(int variant, int n_tiles, const Use &use) {
    auto with = [&](auto chosen) {
        if (n_tiles == 1) use(W(), chosen, std::integral_constant<int, 1>());
        if (n_tiles == 2) use(W(), chosen, std::integral_constant<int, 2>());
        if (n_tiles == 8) use(W(), chosen, std::integral_constant<int, 8>());
    };
    if (variant == 0) with(std::integral_constant<int, 0>());
    if (variant == 1) with(std::integral_constant<int, 1>());
}
template <class Use> void with_expert_kernel(quire::ArrangedType type, int variant, int n_tiles, const Use &use) {
    using quire::ArrangedType;
    if (type == ArrangedType::q8_0) with_expert_shape<ArrangedQ8>(variant, n_tiles, use);
    if (type == ArrangedType::q4_k) with_expert_shape<ArrangedQ4K>(variant, n_tiles, use);
    if (type == ArrangedType::q6_k) with_expert_shape<ArrangedQ6K>(variant, n_tiles, use);
    if (type == ArrangedType::mxfp4) with_expert_shape<ArrangedMxfp4>(variant, n_tiles, use);
    if (type == ArrangedType::bf16) with_expert_shape<ArrangedBf16>(variant, n_tiles, use);
}

template <bool is_gated> int expert_shared_bytes(quire::ArrangedType type, int variant, int n_tiles) {
    int bytes = 0;
    with_expert_kernel(type, variant, n_tiles, [&](auto w, auto v, auto tiles) {
        using Shape = ExpertShape<is_gated, decltype(v)::value>;
        bytes = StageMemory<decltype(w), Shape, decltype(tiles)::value>::total_bytes;
    });
    return bytes;
}

// A layer, and room for what its kernels pass on.
struct ExpertRun {
    const float *x, *weights, *added; // added may be null
    const int *experts;
    const char *gate, *up, *down; // gate may be null
    const float *gate_bias, *up_bias, *down_bias; // may be null
    float *out;
    int n_in, n_tokens, n_used, experts_step;
    // Room.
    char *rounded; // expert_rounded_bytes()
    float *row_factors, *inner, *each; // [n_choices], [n_choices][n_inner], [n_choices][n_in]
    int *order; // [n_choices]
    Work *works; // [expert_works()]
};
inline size_t expert_rounded_bytes(const quire::ExpertLayer &layer, int n_in, int n_tokens, int n_used) {
    auto room = [](int n) { return static_cast<size_t>(n + 255) / 256 * 512; };
    const size_t of_x = room(n_in) * n_tokens, of_inner = room(layer.n_inner) * n_tokens * n_used;
    return of_x > of_inner ? of_x : of_inner;
}

// `launch(kernel, args, x, y, threads, shared bytes)`.
template <class Launch>
void multiply_experts(const quire::ExpertLayer &layer, const ExpertRun &run, const Launch &launch) {
    using quire::ArrangedType;
    const int n_choices = run.n_tokens * run.n_used, n_tiles = expert_tiles(n_choices, layer.n_expert);
    const int n_works = expert_works(n_choices, layer.n_expert);
    launch(sort_choices, SortArgs{run.experts, run.order, run.works, run.n_used, n_choices, layer.n_expert,
                                  run.experts_step, 8 * n_tiles, n_works},
           1, 1, sort_threads, 0);
    auto multiply = [&](ArrangedType type, int variant, const float *x, int n_in, int n_out, int choices_per_row,
                        ExpertArgs args, auto is_gated) {
        BatchArgs rows{};
        rows.x = x;
        rows.rounded = run.rounded;
        rows.row_factors = run.row_factors;
        rows.n_in = n_in;
        rows.n_out = n_out;
        rows.n_rows = n_choices / choices_per_row;
        set_sizes(rows, type, nullptr);
        rows.n_tiles = 0;
        launch(round_rows, rows, rows.n_rows, 1, round_threads, 0);
        args.rounded = run.rounded;
        args.row_factors = run.row_factors;
        args.order = run.order;
        args.works = run.works;
        args.expert_bytes = quire::arranged_bytes(type, n_in, n_out);
        args.n_out = n_out;
        args.n_strips = rows.n_strips;
        args.n_units = rows.n_units;
        args.choices_per_row = choices_per_row;
        with_expert_kernel(type, variant, n_tiles, [&](auto w, auto v, auto tiles) {
            constexpr bool gates = decltype(is_gated)::value;
            constexpr int chosen = decltype(v)::value, n = decltype(tiles)::value;
            using Shape = ExpertShape<gates, chosen>;
            launch(multiply_experts<decltype(w), gates, chosen, n>, args, (args.n_strips + Shape::across - 1) / Shape::across,
                   n_works, batch_threads, StageMemory<decltype(w), Shape, n>::total_bytes);
        });
    };
    ExpertArgs up{};
    up.gate = run.gate;
    up.matrix = run.up;
    up.gate_bias = run.gate_bias;
    up.bias = run.up_bias;
    up.weights = layer.weighs_input ? run.weights : nullptr;
    up.out = run.inner;
    up.unit = layer.unit;
    up.alpha = layer.alpha;
    up.limit = layer.limit;
    multiply(static_cast<ArrangedType>(layer.up_type), layer.up_variant, run.x, run.n_in, layer.n_inner, run.n_used, up,
             std::true_type());
    ExpertArgs down{};
    down.matrix = run.down;
    down.bias = run.down_bias;
    down.out = run.each;
    multiply(static_cast<ArrangedType>(layer.down_type), layer.down_variant, run.inner, layer.n_inner, run.n_in, 1, down,
             std::false_type());
    launch(add_experts,
           AddExpertsArgs{run.each, layer.weighs_input ? nullptr : run.weights, run.added, run.out, run.n_in, run.n_used},
           (run.n_in + batch_threads - 1) / batch_threads, run.n_tokens, batch_threads, 0);
}

} // namespace quire_cuda
