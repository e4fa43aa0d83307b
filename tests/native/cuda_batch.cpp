// The kernels of native/cuda/batch_product.cuh, called on the CPU: tests/kernels/test_batch_products.py compiles and loads
// this.  It has the functions of benchmarks/batch_kernels.cu, too.
#include "cuda_emulator.h"

#include "cuda/batch_launch.cuh"

namespace {

struct Opened {
    quire::ArrangedType type;
    std::vector<uint4> arranged;
    int n_in, n_out;
} opened;

} // namespace

// Arranges a matrix; -1 if there are no kernels for it.
extern "C" int batch_open(int type, const void *stored, int n_in, int n_out, int) {
    const auto of = static_cast<quire::ArrangedType>(type);
    if (!quire::can_arrange(of, n_in, n_out)) return -1;
    opened = {of, std::vector<uint4>((quire::arranged_bytes(of, n_in, n_out) + 15) / 16), n_in, n_out};
    quire::arrange_rows(of, stored, n_in, n_out, 0, n_out, opened.arranged.data());
    return 0;
}

// Reads the arranged matrix back.
extern "C" void batch_decoded(float *decoded) {
    for (int row = 0; row < opened.n_out; ++row)
        quire::read_arranged_row(opened.type, opened.arranged.data(), opened.n_in, opened.n_out, row,
                                 decoded + static_cast<size_t>(row) * static_cast<size_t>(opened.n_in));
}

// `norm` and `added` may be null.
extern "C" void batch_multiply(int variant, int n_splits, int n_rows, const float *x, float *out, const float *norm,
                               const float *added, float eps, int order) {
    quire_cuda::BatchArgs args{};
    args.x = x;
    args.norm = norm;
    args.added = added;
    args.out = out;
    args.n_in = opened.n_in;
    args.n_out = opened.n_out;
    args.n_rows = n_rows;
    args.n_splits = n_splits;
    args.is_normed = norm != nullptr;
    args.eps = eps;
    quire_cuda::set_sizes(args, opened.type, opened.arranged.data());
    std::vector<uint4> rounded(quire_cuda::rounded_bytes(args.n_in, n_rows) / 16);
    std::vector<float> factors(static_cast<size_t>(8 * args.n_tiles)),
        parts(quire_cuda::batch_parts(args.n_out, n_rows, n_splits), NAN);
    args.rounded = reinterpret_cast<char *>(rounded.data());
    args.row_factors = factors.data();
    args.parts = parts.data();
    quire_cuda::multiply_batch(
        args, opened.type, variant, [&](auto kernel, int x_blocks, int y_blocks, int z_blocks, int n_threads, int) {
            const auto as_size = [](int n) { return static_cast<unsigned>(n); };
            emulator::launch({as_size(x_blocks), as_size(y_blocks), as_size(z_blocks)}, n_threads,
                             static_cast<emulator::Order>(order), [&] { kernel(args); });
        });
}

extern "C" int batch_run(int variant, int n_splits, int n_rows, const float *x, float *out) {
    batch_multiply(variant, n_splits, n_rows, x, out, nullptr, nullptr, 0, 0);
    return 0;
}

// Nothing is timed: the thread blocks of the product.
extern "C" int batch_time(int variant, int n_splits, int n_rows, int, float *microseconds) {
    quire_cuda::with_batch_kernel(opened.type, variant, quire_cuda::batch_tiles(n_rows), [&](auto w, auto v, auto tiles) {
        constexpr int strips =
            quire_cuda::BatchShape<decltype(w), decltype(v)::value, decltype(tiles)::value>::strips;
        *microseconds = static_cast<float>(((opened.n_out + 15) / 16 + strips - 1) / strips * n_splits);
    });
    return 0;
}

extern "C" void batch_default(int type, int n_in, int n_out, int *variant, int *n_splits) {
    const quire::BatchPlan plan = quire::default_batch_plan(static_cast<quire::ArrangedType>(type), n_in, n_out);
    *variant = plan.variant;
    *n_splits = plan.n_splits;
}

extern "C" const char *batch_device(double *bytes_per_s) {
    *bytes_per_s = 0;
    return "emulated";
}
