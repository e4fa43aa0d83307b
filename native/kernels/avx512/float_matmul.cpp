#include "kernels/avx512/lanes.h"

#include "kernels/float_matmul_tile.h"

namespace quire {

const FloatMatmulKernels avx512::float_matmul_kernels = {multiply_any<Lanes>, nullptr};

} // namespace quire
