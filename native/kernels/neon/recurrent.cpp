#include "kernels/neon/lanes.h"

#include "kernels/rows/recurrent_tile.h"

namespace quire {

const RecurrentKernels neon::recurrent_kernels = Recurrent<Lanes>::table;

} // namespace quire
