// Products of codes without VNNI: VPMADDUBSW.
#include "kernels/avx512/quantize.h"

#include "kernels/matmul/pair_products.h"

namespace quire {
namespace {

struct ByteLanes : PairLanes<CodeLanes> {
    static constexpr BlockShape few{3, 1}, more{3, 1}, unpacked{4, 2};
    static constexpr int max_packed_rows(const ChunkLayout &) { return few_packed_rows; }
};

} // namespace

const MatmulKernels avx512::matmul_kernels = {quantize_by_16_groups, multiply_any<ByteLanes>};

} // namespace quire
