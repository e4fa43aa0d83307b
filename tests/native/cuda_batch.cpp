// The kernels of native/cuda/batch_product.cuh, called on the CPU: tests/kernels/test_batch_products.py compiles and loads
// this.
#include "cuda_emulator.h"

#include "cuda/batch_launch.cuh"

// Arranges the matrix, reads it back, and multiplies; 1 if the size is unsupported.
extern "C" int cuda_multiply_batch(const void *matrix, int type, int variant, int n_splits, const float *x,
                                   const float *norm, const float *added, float *out, int n_in, int n_out, int n_rows,
                                   float eps, int order, float *decoded) {
    const auto of = static_cast<quire::ArrangedType>(type);
    if (!quire::can_arrange(of, n_in, n_out)) return 1;
    const size_t n_bytes = quire::arranged_bytes(of, n_in, n_out);
    std::vector<uint4> arranged((n_bytes + 15) / 16);
    quire::arrange_rows(of, matrix, n_in, n_out, 0, n_out, arranged.data());
    for (int row = 0; row < n_out; ++row)
        quire::read_arranged_row(of, arranged.data(), n_in, n_out, row, decoded + static_cast<size_t>(row) * n_in);
    quire_cuda::BatchArgs args{};
    args.x = x;
    args.norm = norm;
    args.added = added;
    args.out = out;
    args.n_in = n_in;
    args.n_out = n_out;
    args.n_rows = n_rows;
    args.n_splits = n_splits;
    args.is_normed = norm != nullptr;
    args.eps = eps;
    quire_cuda::set_sizes(args, of, arranged.data());
    std::vector<uint4> rounded(quire_cuda::rounded_bytes(n_in, n_rows) / 16);
    std::vector<float> factors(static_cast<size_t>(8 * args.n_tiles)),
        parts(quire_cuda::batch_parts(n_out, n_rows, n_splits), NAN);
    args.rounded = reinterpret_cast<char *>(rounded.data());
    args.row_factors = factors.data();
    args.parts = parts.data();
    quire_cuda::multiply_batch(args, of, variant,
                               [&](auto kernel, int x_blocks, int y_blocks, int z_blocks, int n_threads, int) {
                                   const auto as_size = [](int n) { return static_cast<unsigned>(n); };
                                   emulator::launch({as_size(x_blocks), as_size(y_blocks), as_size(z_blocks)}, n_threads,
                                                    static_cast<emulator::Order>(order), [&] { kernel(args); });
                               });
    return 0;
}
