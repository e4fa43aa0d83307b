#include "kernels/portable/lanes.h"

#include "kernels/matmul/float_matmul_tile.h"

namespace quire {

const FloatMatmulKernels portable::float_matmul_kernels = {multiply_any<Lanes>, nullptr};

} // namespace quire
