#include "kernels/avx2/lanes.h"

#include "kernels/matmul/float_matmul_tile.h"

namespace quire {

const FloatMatmulKernels avx2::float_matmul_kernels = {multiply_any<Lanes>, nullptr};

} // namespace quire
