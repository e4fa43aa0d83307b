#include "kernels/neon/code_lanes.h"

#include "kernels/matmul/matmul_tile.h"

namespace quire {

const MatmulKernels neon::matmul_kernels = {quantize<CodeLanes>, multiply_any<CodeLanes>};

} // namespace quire
