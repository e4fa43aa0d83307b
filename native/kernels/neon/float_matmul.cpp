#include "kernels/neon/lanes.h"

#include "kernels/matmul/float_matmul_tile.h"

namespace quire {

const FloatMatmulKernels neon::float_matmul_kernels = {multiply_any<Lanes>, nullptr};

} // namespace quire
