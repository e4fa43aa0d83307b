#include "kernels/neon/lanes.h"

#include "kernels/rows/row_kernels-inl.h"

namespace quire {
namespace {

struct RowLanes : Lanes {
    static Vec swap_pairs(Vec x) { return vrev64q_f32(x); }
};

} // namespace

const RowKernels neon::row_kernels = Rows<RowLanes>::table;

} // namespace quire
