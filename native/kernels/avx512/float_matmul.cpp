#include "kernels/avx512/lanes.h"

#include "kernels/matmul/float_matmul_tile.h"

namespace quire {

const FloatMatmulKernels avx512::float_matmul_kernels = {multiply_any<Lanes>, nullptr};

} // namespace quire
