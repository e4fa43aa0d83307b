// The kernels of native/cuda/batch_product.cuh, called on the CPU:
// tests/kernels/test_batch_products.py compiles and loads this.
#include "cuda_emulator.h"

#include "cuda/batch_launch.cuh"

namespace {

void multiply(const quire::ArrangedType type, const void *arranged, int variant,
              emulator::Order order, quire_cuda::BatchArgs args) {
  quire_cuda::set_sizes(args, type, arranged);
  std::vector<uint4> rounded(quire_cuda::rounded_bytes(args.n_in, args.n_rows) /
                             16);
  std::vector<float> factors(static_cast<size_t>(8 * args.n_tiles)),
      parts(quire_cuda::batch_parts(args.n_out, args.n_rows, args.n_splits),
            NAN);
  args.rounded = reinterpret_cast<char *>(rounded.data());
  args.row_factors = factors.data();
  args.parts = parts.data();
  quire_cuda::multiply_batch(
      args, type, variant,
      [&](auto kernel, int x_blocks, int y_blocks, int z_blocks, int n_threads,
          int) {
        const auto as_size = [](int n) { return static_cast<unsigned>(n); };
        emulator::launch(
            {as_size(x_blocks), as_size(y_blocks), as_size(z_blocks)},
            n_threads, order, [&] { kernel(args); });
      });
}

std::vector<uint4> arranged_matrix(quire::ArrangedType type, const void *matrix,
                                   int n_in, int n_out) {
  std::vector<uint4> arranged((quire::arranged_bytes(type, n_in, n_out) + 15) /
                              16);
  quire::arrange_rows(type, matrix, n_in, n_out, 0, n_out, arranged.data());
  return arranged;
}

} // namespace

// Arranges the matrix, reads it back, and multiplies; 1 if the size is
// unsupported.
extern "C" int cuda_multiply_batch(const void *matrix, int type, int variant,
                                   int n_splits, const float *x,
                                   const float *norm, const float *added,
                                   float *out, int n_in, int n_out, int n_rows,
                                   float eps, int order, float *decoded) {
  const auto of = static_cast<quire::ArrangedType>(type);
  if (!quire::can_arrange(of, n_in, n_out))
    return 1;
  const std::vector<uint4> arranged = arranged_matrix(of, matrix, n_in, n_out);
  for (int row = 0; row < n_out; ++row)
    quire::read_arranged_row(of, arranged.data(), n_in, n_out, row,
                             decoded + static_cast<size_t>(row) * n_in);
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
  multiply(of, arranged.data(), variant, static_cast<emulator::Order>(order),
           args);
  return 0;
}

// The functions of benchmarks/batch_kernels.cu.
namespace {

quire::ArrangedType opened_type;
std::vector<uint4> opened;
int opened_in = 0, opened_out = 0;

} // namespace

extern "C" int batch_open(int type, const void *stored, int n_in, int n_out,
                          int) {
  opened_type = static_cast<quire::ArrangedType>(type);
  if (!quire::can_arrange(opened_type, n_in, n_out))
    return -1;
  opened = arranged_matrix(opened_type, stored, n_in, n_out);
  opened_in = n_in;
  opened_out = n_out;
  return 0;
}

extern "C" int batch_run(int variant, int n_splits, int n_rows, const float *x,
                         float *out) {
  quire_cuda::BatchArgs args{};
  args.x = x;
  args.out = out;
  args.n_in = opened_in;
  args.n_out = opened_out;
  args.n_rows = n_rows;
  args.n_splits = n_splits;
  multiply(opened_type, opened.data(), variant, emulator::Order::forward, args);
  return 0;
}

// Nothing is timed: the thread blocks of the product.
extern "C" int batch_time(int variant, int n_splits, int n_rows, int,
                          float *microseconds) {
  quire_cuda::with_batch_kernel(
      opened_type, variant, quire_cuda::batch_tiles(n_rows),
      [&](auto w, auto v, auto tiles) {
        constexpr int strips =
            quire_cuda::BatchShape<decltype(w), decltype(v)::value,
                                   decltype(tiles)::value>::strips;
        *microseconds = static_cast<float>(
            ((opened_out + 15) / 16 + strips - 1) / strips * n_splits);
      });
  return 0;
}

extern "C" void batch_default(int type, int n_in, int n_out, int *variant,
                              int *n_splits) {
  const quire::BatchPlan plan = quire::default_batch_plan(
      static_cast<quire::ArrangedType>(type), n_in, n_out);
  *variant = plan.variant;
  *n_splits = plan.n_splits;
}

extern "C" const char *batch_device(double *bytes_per_s) {
  *bytes_per_s = 0;
  return "emulated";
}
