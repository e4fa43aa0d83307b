#include "kernels/avx2/lanes.h"

#include "kernels/rows/row_kernels-inl.h"

namespace quire {
namespace {

struct RowLanes : Lanes {
    static Vec swap_pairs(Vec x) { return _mm256_permute_ps(x, 0xb1); }
};

} // namespace

const RowKernels avx2::row_kernels = Rows<RowLanes>::table;

} // namespace quire
