#include "kernels/avx2/lanes.h"

#include "kernels/rows/recurrent_tile.h"

namespace quire {

const RecurrentKernels avx2::recurrent_kernels = Recurrent<Lanes>::table;

} // namespace quire
