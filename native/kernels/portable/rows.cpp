#include "kernels/portable/lanes.h"

#include "kernels/rows/row_kernels-inl.h"

namespace quire {
namespace {

struct RowLanes : Lanes {
    static Vec swap_pairs(const Vec &x) { return {{x.lane[1], x.lane[0], x.lane[3], x.lane[2]}}; }
};

} // namespace

const RowKernels portable::row_kernels = Rows<RowLanes>::table;

} // namespace quire
