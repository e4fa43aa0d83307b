// Products of codes without VNNI: VPMADDUBSW.
#include "kernels/avx2/code_lanes.h"

#include "kernels/matmul/matmul_tile.h"
#include "kernels/matmul/pair_products.h"

namespace quire {
namespace {

struct ByteLanes : PairLanes<CodeLanes> {
    static constexpr BlockShape few{2, 1}, more{4, 1}, unpacked{4, 1};
};

} // namespace

const MatmulKernels avx2::matmul_kernels = {quantize<ByteLanes>, multiply_any<ByteLanes>};

} // namespace quire
