#include "kernels/portable/lanes.h"

#include "kernels/rows/recurrent_tile.h"

namespace quire {

const RecurrentKernels portable::recurrent_kernels = Recurrent<Lanes>::table;

} // namespace quire
