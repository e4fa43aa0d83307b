// Products of unsigned codes of weights with signed codes of activations: VPDPBUSD.
#include "kernels/avx512vnni/vnni_lanes.h"

#include "kernels/avx512/quantize.h"
#include "kernels/matmul/matmul_tile.h"

namespace quire {

const MatmulKernels avx512vnni::matmul_kernels = {quantize_by_16_groups, multiply_any<VnniLanes>};

} // namespace quire
