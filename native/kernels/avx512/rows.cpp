#include "kernels/avx512/lanes.h"

#include "kernels/rows/row_kernels-inl.h"

namespace quire {
namespace {

struct RowLanes : Lanes {
    static Vec swap_pairs(Vec x) { return _mm512_permute_ps(x, 0xb1); }
};

} // namespace

const RowKernels avx512::row_kernels = Rows<RowLanes>::table;

} // namespace quire
