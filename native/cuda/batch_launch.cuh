// Chooses the kernel of cuda/batch_product.cuh for a product.

#pragma once

#include "cuda/arranged_matrix.h"
#include "cuda/batch_product.cuh"

namespace quire_cuda {

inline int batch_tiles(int n_rows) { return n_rows <= 8 ? 1 : n_rows <= 16 ? 2 : n_rows <= 32 ? 4 : 8; }

// Calls use(W(), variant, tiles), the last two as constants.
template <class W, int variant, class Use> void with_tiles(int n_tiles, const Use &use) {
    if (n_tiles == 1) use(W(), std::integral_constant<int, variant>(), std::integral_constant<int, 1>());
    if (n_tiles == 2) use(W(), std::integral_constant<int, variant>(), std::integral_constant<int, 2>());
    if (n_tiles == 4) use(W(), std::integral_constant<int, variant>(), std::integral_constant<int, 4>());
    if (n_tiles == 8) use(W(), std::integral_constant<int, variant>(), std::integral_constant<int, 8>());
}
template <class W, class Use> void with_variant(int variant, int n_tiles, const Use &use) {
    if (variant == 0) with_tiles<W, 0>(n_tiles, use);
    if (variant == 1) with_tiles<W, 1>(n_tiles, use);
    if (variant == 2) with_tiles<W, 2>(n_tiles, use);
    if (variant == 3) with_tiles<W, 3>(n_tiles, use);
}
template <class Use> void with_batch_kernel(quire::ArrangedType type, int variant, int n_tiles, const Use &use) {
    using quire::ArrangedType;
    if (type == ArrangedType::q4_0) with_variant<ArrangedQ4>(variant, n_tiles, use);
    if (type == ArrangedType::q8_0) with_variant<ArrangedQ8>(variant, n_tiles, use);
    if (type == ArrangedType::q4_k) with_variant<ArrangedQ4K>(variant, n_tiles, use);
    if (type == ArrangedType::q5_k) with_variant<ArrangedQ5K>(variant, n_tiles, use);
    if (type == ArrangedType::q6_k) with_variant<ArrangedQ6K>(variant, n_tiles, use);
    if (type == ArrangedType::mxfp4) with_variant<ArrangedMxfp4>(variant, n_tiles, use);
    if (type == ArrangedType::bf16) with_variant<ArrangedBf16>(variant, n_tiles, use);
    if (type == ArrangedType::q4_1) with_variant<ArrangedQ41>(variant, n_tiles, use);
    if (type == ArrangedType::q5_0) with_variant<ArrangedQ50>(variant, n_tiles, use);
    if (type == ArrangedType::nvfp4) with_variant<ArrangedNvfp4>(variant, n_tiles, use);
}

inline int batch_shared_bytes(quire::ArrangedType type, int variant, int n_tiles) {
    int bytes = 0;
    with_batch_kernel(type, variant, n_tiles, [&](auto w, auto v, auto tiles) {
        bytes = BatchMemory<decltype(w), decltype(v)::value, decltype(tiles)::value>::total_bytes;
    });
    return bytes;
}

// Bytes of `rounded` and `row_factors`, and numbers in `parts`.
inline size_t rounded_bytes(int n_in, int n_rows) { return static_cast<size_t>(n_in + 255) / 256 * 256 * batch_tiles(n_rows) * 16; }
inline size_t batch_parts(int n_out, int n_rows, int n_splits) {
    return n_splits == 1 ? 0 : static_cast<size_t>(n_splits) * n_rows * ((n_out + 15) / 16 * 16);
}

// Sets what follows from the matrix and the number of rows.
inline void set_sizes(BatchArgs &args, quire::ArrangedType type, const void *matrix) {
    args.n_strips = (args.n_out + quire::arranged_rows - 1) / quire::arranged_rows;
    args.n_units = static_cast<int>(quire::arranged_units(type, args.n_in));
    args.unit_columns = quire::arranged_groups(type) * quire::arranged_columns;
    args.n_tiles = batch_tiles(args.n_rows);
    args.is_bf16 = type == quire::ArrangedType::bf16;
    args.factors = static_cast<const float *>(matrix);
    args.units = static_cast<const char *>(matrix) + static_cast<size_t>(args.n_strips) * quire::arranged_rows * 4;
}

// `launch(kernel, x, y, z, threads, shared bytes)`.
template <class Launch>
void multiply_batch(const BatchArgs &args, quire::ArrangedType type, int variant, const Launch &launch) {
    launch(round_rows, 8 * args.n_tiles, 1, 1, round_threads, 0);
    with_batch_kernel(type, variant, args.n_tiles, [&](auto w, auto v, auto tiles) {
        using W = decltype(w);
        constexpr int chosen = decltype(v)::value, n_tiles = decltype(tiles)::value;
        constexpr int strips = BatchShape<W, chosen, n_tiles>::strips;
        launch(multiply_rows<W, chosen, n_tiles>, (args.n_strips + strips - 1) / strips, 1, args.n_splits,
               batch_threads, BatchMemory<W, chosen, n_tiles>::total_bytes);
    });
    if (args.n_splits > 1)
        launch(add_parts, (args.n_out + batch_threads - 1) / batch_threads, args.n_rows, 1, batch_threads, 0);
}

} // namespace quire_cuda
