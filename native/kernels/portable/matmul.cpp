#include "kernels/portable/code_lanes.h"

#include "kernels/matmul/matmul_tile.h"

namespace quire {

const MatmulKernels portable::matmul_kernels = {quantize<CodeLanes>, multiply_any<CodeLanes>};

} // namespace quire
