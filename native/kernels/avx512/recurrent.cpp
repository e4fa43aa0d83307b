#include "kernels/avx512/lanes.h"

#include "kernels/rows/recurrent_tile.h"

namespace quire {

const RecurrentKernels avx512::recurrent_kernels = Recurrent<Lanes>::table;

} // namespace quire
